"""A run as one HTML file: before and after, plots, row cases, sample generations. Nothing is fetched to show it.

Reads only the files a run leaves (`records.py`); knows neither models nor Ray.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from tokbridge.errors import InvalidDataError
from tokbridge_trainer.evaluation.bits_per_byte import gap_closed
from tokbridge_trainer.metrics import json_lines
from tokbridge_trainer.report_plots import draw_plots

Line = dict[str, Any]

COMPARED = (
    ("eval/written/student_bits_per_byte", "student's bits per byte on the teacher's text", "lower"),
    ("eval/rollouts/teacher_bits_per_byte", "teacher's bits per byte on the student's answers", "lower"),
    ("eval/written/top1_agreement", "same likeliest next byte", "higher"),
    ("eval/rollouts/stop_rate", "answers that end by themselves", "higher"),
    ("eval/loss", "loss on the student's answers", "lower"),
)
"""Metric, what it is, which way is better."""
_FLOOR = "eval/written/teacher_bits_per_byte"


@dataclass(frozen=True)
class Comparison:
    """One quantity before the first step and after the last."""

    label: str
    before: float
    after: float
    better: str
    """"lower" or "higher"."""

    @property
    def improved(self) -> bool:
        """Whether it moved the right way."""
        return (self.after < self.before) == (self.better == "lower") and self.after != self.before


@dataclass(frozen=True)
class RunRecords:
    """What a run wrote, in the order it was written."""

    metrics: list[Line]
    evaluations: list[Line]
    evaluation_samples: list[Line]
    config: str


def read_run(folder: Path) -> RunRecords:
    """Read the records of a run.

    Raises:
        InvalidDataError: the folder holds no metrics.
    """
    if not (folder / "metrics.jsonl").exists():
        raise InvalidDataError(f"{folder} holds no metrics.jsonl: it is not the output folder of a run")
    names = ("metrics", "evaluations", "evaluation_samples")
    config = folder / "config.yaml"
    return RunRecords(
        **{name: _read_lines(folder / f"{name}.jsonl") for name in names},
        config=config.read_text(encoding="utf-8") if config.exists() else "",
    )


def compare(evaluations: list[Line]) -> list[Comparison]:
    """First against last evaluation, for the quantities that both have."""
    if len(evaluations) < 2:
        return []
    first, last = evaluations[0], evaluations[-1]
    return [
        Comparison(label, first[name], last[name], better)
        for name, label, better in COMPARED
        if name in first and name in last
    ]


def share_of_gap_closed(evaluations: list[Line]) -> float | None:
    """How much of the student's distance to the teacher's own bits per byte is gone; None where it isn't known."""
    name = COMPARED[0][0]
    if len(evaluations) < 2 or not all(key in line for line in evaluations for key in (name, _FLOOR)):
        return None
    first, last = evaluations[0], evaluations[-1]
    return gap_closed(first[name], last[name], last[_FLOOR])


def paired_samples(samples: list[Line], count: int) -> list[tuple[Line, Line]]:
    """Answers to the same prompts at the first and at the last evaluation, at most `count`."""
    if not samples:
        return []
    steps = sorted({line["step"] for line in samples})
    by_step = {step: {s["prompt_index"]: s for s in samples if s["step"] == step} for step in (steps[0], steps[-1])}
    first, last = by_step[steps[0]], by_step[steps[-1]]
    return [(first[index], last[index]) for index in first if index in last][:count]


def write_report(folder: Path, title: str, *, notes: Mapping[str, str] | None = None, samples: int = 12) -> Path:
    """Write `report.html` into the output folder of a run and return its path.

    Args:
        notes: facts to show at the top, by name.
        samples: pairs of generations shown.

    Raises:
        InvalidDataError: the folder holds no run.
    """
    run = read_run(folder)
    floors = [line[_FLOOR] for line in run.evaluations if _FLOOR in line]
    environment = Environment(loader=PackageLoader("tokbridge_trainer", "templates"), autoescape=select_autoescape())
    html = environment.get_template("report.html").render(
        title=title,
        notes=notes or {},
        comparisons=compare(run.evaluations),
        gap_closed=share_of_gap_closed(run.evaluations),
        teacher_bits_per_byte=floors[-1] if floors else None,
        plots=draw_plots(run.metrics, run.evaluations),
        cases=count_cases(run.metrics),
        samples=paired_samples(run.evaluation_samples, samples),
        config=run.config,
    )
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def count_cases(metrics: list[Line]) -> list[tuple[str, int, float]]:
    """(case, rows of the whole run, mean divergence in nats), the most frequent first."""
    prefix = "rows/"
    names = {key.removeprefix(prefix) for line in metrics for key in line if key.startswith(prefix)} - {"learned"}
    counts = {name: int(sum(line.get(prefix + name, 0) for line in metrics)) for name in names}
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    return [(name, counts[name], _mean(metrics, f"divergence/{name}")) for name in ordered]


def _mean(metrics: list[Line], key: str) -> float:
    values = [line[key] for line in metrics if key in line]
    return sum(values) / len(values) if values else float("nan")


def _read_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in json_lines(path)] if path.exists() else []
