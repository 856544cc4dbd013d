"""Checkpoints on the disk: what they are called, how they are found, and whether one belongs to a run.

A checkpoint is a folder `checkpoint-000012` (12 steps done): the model (or its adapters) and the tokenizer in Hugging
Face format; `state/` with the optimizer, in as many parts as the learner has ranks, which any other number can read;
`config.yaml` of the run; and `run_state.json`, without which the folder is none. How one comes into being stands in
`checkpoint_writing.py`. The module knows nothing of models.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from tokbridge.errors import CheckpointError
from tokbridge_trainer.config import TrainConfig

_NAME = re.compile(r"checkpoint-(\d{6,})")
STATE_FILE = "run_state.json"
CONFIG_FILE = "config.yaml"
TENSORS_FOLDER = "state"


@dataclass(frozen=True)
class RunState:
    """Where a run stands. Everything random follows from the seed and the step, so these are enough."""

    steps_done: int
    """Optimizer steps of both phases: the policy version, and the position in the data and in the schedule."""
    seed: int
    data_fingerprint: str
    """Of the data and the settings that order it; a run resumes on the same data in the same order only."""

    def to_json(self) -> str:
        """The text of `run_state.json`."""
        return json.dumps(asdict(self), indent=2)


def checkpoint_path(root: Path, steps_done: int) -> Path:
    """Where the checkpoint after so many steps lies."""
    return root / f"checkpoint-{steps_done:06d}"


def list_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints below a folder, oldest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _NAME.fullmatch(path.name) and (path / STATE_FILE).is_file()]
    return sorted(found, key=steps_done_at)


def steps_done_at(path: Path) -> int:
    """The number in a checkpoint's name."""
    return int(path.name.removeprefix("checkpoint-"))


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
    require_complete(path)
    return path


def require_complete(path: Path) -> None:
    """Refuse a folder that is no whole checkpoint.

    Raises:
        CheckpointError: it is not one.
    """
    if not (path / STATE_FILE).is_file():
        raise CheckpointError(f"{path} is not a complete checkpoint: it has no {STATE_FILE}")


def read_state(path: Path) -> RunState:
    """The state that a checkpoint was written with.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return RunState(**json.loads((path / STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"cannot read {path / STATE_FILE}: {error}") from error


def check_same_run(saved: RunState, seed: int, data_fingerprint: str) -> None:
    """Refuse a checkpoint of another run: other data or another seed would silently change what is trained on."""
    if saved.seed != seed:
        raise CheckpointError(f"the checkpoint was written with seed {saved.seed}, the configuration has {seed}")
    if saved.data_fingerprint != data_fingerprint:
        raise CheckpointError(
            "the checkpoint was written with other prompts, another `warm_start`, `prompts_per_step`, "
            "`samples_per_prompt` or `prompts.shuffle`; set `resume: never` to start anew"
        )


def check_same_student(saved: TrainConfig, config: TrainConfig) -> None:
    """Refuse a checkpoint of another student: it, and not the configured one, would be trained on.

    Adapters come with the settings that they were saved with, while rollout workers make theirs as configured.
    """
    for key, then, now in (
        ("student.model", _place(saved.student.model), _place(config.student.model)),
        ("lora", saved.lora, config.lora),
    ):
        if then != now:
            raise CheckpointError(
                f"the checkpoint was written with another `{key}` ({then or 'none'}, now {now or 'none'}); "
                "set it back, take another `output_dir`, or set `resume: never` to start anew"
            )


def _place(model: str) -> str:
    """A folder by its full path, a hub id as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model
