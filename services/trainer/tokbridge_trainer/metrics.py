"""Writers of numbers by step: JSONL files, TensorBoard, Weights & Biases.

A resumed run drops what an earlier one logged past its checkpoint, so no step stands twice; at Weights & Biases, which
takes nothing back, it leaves out what is made anew. What the numbers mean is not known here.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_sections import LogConfig

_WANDB_ID_FILE = "wandb_run_id"


class MetricsWriter(Protocol):
    """One place that metrics go to."""

    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """Record the metrics of a step."""
        ...

    def close(self) -> None:
        """Flush and release."""
        ...


class JsonlWriter:
    """One JSON object a line, with `step`; flushed after each line."""

    def __init__(self, path: Path, first_step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_lines_from(path, first_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps({"step": step, **metrics}, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardWriter:
    """Scalars only; text stays in the JSONL file."""

    def __init__(self, folder: Path, first_step: int, kept: Mapping[str, float | str] | None = None) -> None:
        """Go on at a step: what was logged there and later is hidden.

        Args:
            kept: metrics of the first step that are not made anew, and are written again.
        """
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and optional

        self._writer = SummaryWriter(str(folder), purge_step=first_step)
        self.write(first_step, kept or {})

    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """Add one scalar for each number."""
        for name, value in metrics.items():
            if not isinstance(value, str):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class WandbWriter:
    """A run at Weights & Biases, continued on resume: its id is kept in the output folder."""

    def __init__(self, project: str, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        """Begin a run, or go on with it.

        Raises:
            InvalidConfigError: it does not begin, for want of an API key perhaps.
        """
        import wandb  # an extra of its own
        from wandb.errors import Error

        id_file = folder / _WANDB_ID_FILE
        if first_step == 0 or not id_file.is_file():
            id_file.write_text(secrets.token_hex(8), encoding="utf-8")
        run_id = id_file.read_text(encoding="utf-8")
        try:
            self._run = wandb.init(
                project=project, name=folder.name, dir=str(folder), config=dict(config), id=run_id, resume="allow"
            )
        except Error as error:
            raise InvalidConfigError(f"Weights & Biases does not begin a run: {error}", field="log.wandb") from error

    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """Log one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def require_dashboards(log: LogConfig) -> None:
    """Check, without importing it, that what a run logs to is installed.

    Raises:
        InvalidConfigError: it is not.
    """
    if log.wandb and find_spec("wandb") is None:
        raise InvalidConfigError("log.wandb needs the package wandb: pip install 'tokbridge[wandb]'", field="log.wandb")


def open_dashboards(
    config: TrainConfig, first_step: int, evaluated: Mapping[str, float | str] | None = None
) -> list[MetricsWriter]:
    """TensorBoard and Weights & Biases, as configured, continuing at `first_step`.

    Args:
        evaluated: the evaluation after so many steps, where an earlier run has made it.
    """
    folder = config.output_dir
    writers: list[MetricsWriter] = []
    if config.log.tensorboard:
        writers.append(TensorBoardWriter(folder / "tensorboard", first_step, evaluated))
    if config.log.wandb:
        writers.append(WandbWriter(config.log.wandb, folder, config.model_dump(mode="json"), first_step))
    return writers


def json_lines(path: Path) -> list[str]:
    """Whole lines of a JSONL file; a last one that a kill cut short, or that is being written, is none."""
    # `splitlines` would also cut at U+2028 and its like, which JSON text may hold as they are.
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def drop_lines_from(path: Path, first_step: int) -> None:
    """Remove lines of `first_step` and later, and a last line that a kill cut short; atomic."""
    if not path.exists():
        return
    kept = [line for line in json_lines(path) if _step_of(line) < first_step]
    temporary = path.with_suffix(".partial")
    temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")
