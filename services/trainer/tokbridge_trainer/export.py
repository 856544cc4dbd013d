"""A checkpoint as an ordinary Hugging Face model, without Ray and without a teacher."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from tokbridge.errors import CheckpointError
from tokbridge_trainer.checkpoint import CONFIG_FILE, require_complete
from tokbridge_trainer.config_loading import load_config
from tokbridge_trainer.student import export_model, load_for_learning
from tokbridge_trainer.student_text import TOKENIZER_FILES


def export_checkpoint(checkpoint: Path, folder: Path, dtype: str | None = None) -> None:
    """Write the model of a checkpoint, adapters merged, with its tokenizer, as the end of the run would have.

    Args:
        folder: made where it is missing; files of the same names are replaced.
        dtype: of the weights written; None: the type the run computed in.

    Raises:
        CheckpointError: the checkpoint is not complete, or `folder` is the checkpoint itself or cannot be made.
        InvalidConfigError: adapters stand on a model that cannot be loaded.
    """
    require_complete(checkpoint)
    if folder.resolve() == checkpoint.resolve():
        raise CheckpointError("a checkpoint cannot be exported into itself: it would no longer resume")
    config = load_config(checkpoint / CONFIG_FILE)
    model = load_for_learning(config, torch.device("cpu"), checkpoint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"cannot write into {folder}: {error.strerror}") from error
    export_model(model, folder, getattr(torch, dtype or config.dtype))
    for name in TOKENIZER_FILES:
        if (checkpoint / name).is_file():
            shutil.copyfile(checkpoint / name, folder / name)
