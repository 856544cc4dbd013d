"""What a run leaves on the disk beside checkpoints: metrics, samples and evaluations, one JSON object a line.

metrics.jsonl       one line a step, `step` from 0
samples.jsonl       some samples of each step
evaluations.jsonl   one line an evaluation, `step` = optimizer steps done
evaluation_samples.jsonl    some answers to held-out prompts of each evaluation
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.loop import FinishedStep
from tokbridge_trainer.metrics import JsonlWriter, MetricsWriter, json_lines, open_dashboards
from tokbridge_trainer.step_metrics import Metrics


class Records:
    """The open files and dashboards of a run."""

    def __init__(self, config: TrainConfig, first_step: int) -> None:
        folder = config.output_dir
        self._metrics = JsonlWriter(folder / "metrics.jsonl", first_step)
        self._samples = JsonlWriter(folder / "samples.jsonl", first_step)
        # The evaluation after step `first_step` was written before its checkpoint; the very first one is made anew.
        first_evaluation = first_step + 1 if first_step else 0
        self._evaluations = JsonlWriter(folder / "evaluations.jsonl", first_evaluation)
        self._evaluation_samples = JsonlWriter(folder / "evaluation_samples.jsonl", first_evaluation)
        evaluated = _evaluation_at(first_step, folder / "evaluations.jsonl")
        self._dashboards: list[MetricsWriter] = open_dashboards(config, first_step, evaluated)

    def step(self, finished: FinishedStep) -> None:
        """Record a trained step."""
        for sample in finished.samples:
            self._samples.write(finished.plan.step, sample)
        for writer in (self._metrics, *self._dashboards):
            writer.write(finished.plan.step, finished.metrics)

    def evaluation(self, steps_done: int, metrics: Metrics, samples: Sequence[Mapping[str, str | int]]) -> None:
        """Record an evaluation."""
        for sample in samples:
            self._evaluation_samples.write(steps_done, sample)
        for writer in (self._evaluations, *self._dashboards):
            writer.write(steps_done, metrics)

    def close(self) -> None:
        """Flush and close everything."""
        files = (self._metrics, self._samples, self._evaluations, self._evaluation_samples)
        for writer in (*files, *self._dashboards):
            writer.close()


def _evaluation_at(step: int, path: Path) -> Metrics | None:
    """Metrics of the evaluation after so many steps, if the file has them."""
    lines = [json.loads(line) for line in json_lines(path)]
    return next(({k: v for k, v in line.items() if k != "step"} for line in lines if line["step"] == step), None)


@contextmanager
def open_records(config: TrainConfig, first_step: int) -> Iterator[Records]:
    """Records that continue at a step, closed with the block."""
    records = Records(config, first_step)
    try:
        yield records
    finally:
        records.close()
