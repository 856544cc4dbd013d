"""Writers of numbers by step: JSONL files, TensorBoard, Weights & Biases.

A resumed run drops what an earlier one logged past its checkpoint, so no step stands twice. What the numbers mean is
not known here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tokbridge_trainer.config import TrainConfig


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

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and optional

        self._writer = SummaryWriter(str(folder), purge_step=first_step)

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
    """A run at Weights & Biases, one for each output folder, continued on resume."""

    def __init__(self, project: str, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb  # type: ignore[import-not-found]  # an extra of its own

        self._run = wandb.init(project=project, name=folder.name, dir=str(folder), config=dict(config), resume="allow")

    def write(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """Log one step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def open_dashboards(config: TrainConfig, first_step: int) -> list[MetricsWriter]:
    """TensorBoard and Weights & Biases, as configured, continuing at `first_step`."""
    folder = config.output_dir
    writers: list[MetricsWriter] = []
    if config.log.tensorboard:
        writers.append(TensorBoardWriter(folder / "tensorboard", first_step))
    if config.log.wandb:
        writers.append(WandbWriter(config.log.wandb, folder, config.model_dump(mode="json")))
    return writers


def drop_lines_from(path: Path, first_step: int) -> None:
    """Remove lines of `first_step` and later, and a last line that a kill cut short; atomic."""
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) < first_step]
    temporary = path.with_suffix(".partial")
    temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError):
        return float("inf")
