"""What a checkpoint holds of the learner, copied to CPU memory, so that training goes on while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel

from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_trainer.checkpoint import CONFIG_FILE, TENSORS_FOLDER
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.learner_state import optimizer_tensors
from tokbridge_trainer.student import StudentModel
from tokbridge_trainer.student_text import write_tokenizer_files
from tokbridge_trainer.tensor_store import save_tensors


@dataclass(frozen=True)
class LearnerSnapshot:
    """A learner at one moment."""

    config: TrainConfig
    profile: TokenizerProfile
    model: StudentModel
    """How to write the weights; its own, which training changes, are not read."""
    weights: dict[str, torch.Tensor]
    """Of the whole model, or of its adapters."""
    optimizer: dict[str, torch.Tensor]

    def write(self, folder: Path) -> None:
        """Fill a checkpoint's folder.

        Raises:
            CheckpointError: the optimizer's state cannot be written.
        """
        self.model.save_pretrained(str(folder), state_dict=self.weights)
        write_tokenizer_files(self.profile, folder)
        (folder / CONFIG_FILE).write_text(dump_config(self.config), encoding="utf-8")
        save_tensors(self.optimizer, folder / TENSORS_FOLDER)


def take_snapshot(
    config: TrainConfig, profile: TokenizerProfile, model: StudentModel, optimizer: torch.optim.Optimizer
) -> LearnerSnapshot:
    """Copy model (adapters only, where there are some) and optimizer."""
    weights = _trained(model) if isinstance(model, PeftModel) else model.state_dict()
    return LearnerSnapshot(
        config, profile, model, copy_to_cpu(weights), copy_to_cpu(optimizer_tensors(model, optimizer))
    )


def copy_to_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies in CPU memory; tensors that share their storage (tied embeddings) still do."""
    by_place: dict[tuple[int, torch.Size], torch.Tensor] = {}
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        place = (tensor.data_ptr(), tensor.shape)
        if place not in by_place:
            by_place[place] = tensor.detach().to("cpu", copy=True)
        copies[name] = by_place[place]
    return copies


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
