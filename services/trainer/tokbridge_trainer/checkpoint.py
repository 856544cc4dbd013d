"""Checkpoints on the disk: written whole or not at all, found again, and pruned.

A checkpoint is a folder `checkpoint-000012` (12 steps done): the model and tokenizer in Hugging Face format, the
optimizer's state, and `run_state.json`. It is filled under another name and renamed at the end, so that a killed run
leaves no half checkpoint behind. The module knows nothing of models.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tokbridge.errors import CheckpointError

_NAME = re.compile(r"checkpoint-(\d{6,})")
_STATE_FILE = "run_state.json"


@dataclass(frozen=True)
class RunState:
    """Where a run stands. Everything random follows from the seed and the step, so these are enough."""

    steps_done: int
    """Optimizer steps of both phases: the policy version, and the position in the data."""
    seed: int
    data_fingerprint: str
    """Of the data and the settings that order it; a run resumes on the same data in the same order only."""


def checkpoint_path(root: Path, steps_done: int) -> Path:
    """Where the checkpoint after so many steps lies."""
    return root / f"checkpoint-{steps_done:06d}"


def list_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints below a folder, oldest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and (path / _STATE_FILE).is_file()]
    return sorted(found, key=lambda path: int(path.name.split("-")[1]))


@contextmanager
def writing_checkpoint(root: Path, state: RunState, keep: int) -> Iterator[Path]:
    """A temporary folder to fill; on leaving it becomes the checkpoint, and older ones than `keep` are removed.

    Nothing is left behind when the block raises.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = checkpoint_path(root, state.steps_done)
    temporary = root / f".{final.name}.partial"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        _write_synced(temporary / _STATE_FILE, json.dumps(asdict(state), indent=2))
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in list_checkpoints(root)[:-keep]:
        shutil.rmtree(old)


def find_checkpoint(resume: str, root: Path) -> Path | None:
    """The checkpoint to resume from, as the configuration's `resume` asks: `auto`, `never` or a path.

    Raises:
        CheckpointError: a path was given and there is no complete checkpoint.
    """
    if resume == "never":
        return None
    if resume == "auto":
        found = list_checkpoints(root)
        return found[-1] if found else None
    path = Path(resume)
    if not (path / _STATE_FILE).is_file():
        raise CheckpointError(f"{path} is not a complete checkpoint: it has no {_STATE_FILE}")
    return path


def read_state(path: Path) -> RunState:
    """The state that a checkpoint was written with.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return RunState(**json.loads((path / _STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"cannot read {path / _STATE_FILE}: {error}") from error


def check_same_run(saved: RunState, seed: int, data_fingerprint: str) -> None:
    """Refuse a checkpoint of another run: other data or another seed would silently change what is trained on."""
    if saved.seed != seed:
        raise CheckpointError(f"the checkpoint was written with seed {saved.seed}, the configuration has {seed}")
    if saved.data_fingerprint != data_fingerprint:
        raise CheckpointError(
            "the checkpoint was written with other prompts, another `warm_start`, `prompts_per_step`, "
            "`samples_per_prompt` or `prompts.shuffle`; set `resume: never` to start anew"
        )


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
