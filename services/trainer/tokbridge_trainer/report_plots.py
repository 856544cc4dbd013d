"""The plots of a report, as SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Line = dict[str, Any]
Plot = Callable[[Axes, Sequence[Line]], bool]

_CASES = ("aligned", "interior", "spanning", "excluded", "control", "given", "stop")
_TEACHER_LOSS = re.compile(r"teachers/[^/]+/loss")
_TIMES = (
    ("time/rollout_s", "rollouts"),
    ("time/teacher_wait_s", "waiting for the teacher"),
    ("time/train_s", "training"),
)


def draw_plots(metrics: Sequence[Line], evaluations: Sequence[Line]) -> dict[str, str]:
    """Title → SVG, leaving out plots that have nothing to show."""
    plans: tuple[tuple[str, str, Plot, Sequence[Line]], ...] = (
        ("Loss", "nats per token", _plot_loss, metrics),
        ("Bits per byte, held out", "bits per byte", _plot_bits_per_byte, evaluations),
        ("Held-out agreement and stops", "share", _plot_shares, evaluations),
        ("Teacher's bits per byte on what is trained on", "bits per byte", _plot_training_text, metrics),
        ("Each teacher's part of the loss", "nats per token", _plot_teachers, metrics),
        ("Rows by case", "rows", _plot_cases, metrics),
        ("Seconds of a step", "seconds", _plot_times, metrics),
    )
    drawn = {title: _draw(plot, lines, unit) for title, unit, plot, lines in plans}
    return {title: svg for title, svg in drawn.items() if svg is not None}


def _draw(plot: Plot, lines: Sequence[Line], unit: str) -> str | None:
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    if not plot(axes, lines):
        return None
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(
            loc="outside lower center", ncols=3, fontsize="small", frameon=False, handlelength=1.0, columnspacing=1.0
        )
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def _plot_loss(axes: Axes, metrics: Sequence[Line]) -> bool:
    """One curve for each phase: their β, and so their scales, differ."""
    for phase in dict.fromkeys(line.get("phase", "") for line in metrics):
        _curve(axes, [line for line in metrics if line.get("phase", "") == phase], "loss", str(phase).replace("_", " "))
    axes.set_ylim(bottom=0)
    return bool(axes.lines)


def _plot_bits_per_byte(axes: Axes, evaluations: Sequence[Line]) -> bool:
    _curve(axes, evaluations, "eval/written/student_bits_per_byte", "student, teacher's text")
    _curve(axes, evaluations, "eval/rollouts/teacher_bits_per_byte", "teacher, student's answers")
    _curve(axes, evaluations, "eval/written/teacher_bits_per_byte", "teacher, its own text")
    return bool(axes.lines)


def _plot_shares(axes: Axes, evaluations: Sequence[Line]) -> bool:
    _curve(axes, evaluations, "eval/written/top1_agreement", "same likeliest next byte")
    _curve(axes, evaluations, "eval/rollouts/stop_rate", "answers that end by themselves")
    axes.set_ylim(0, 1)
    return bool(axes.lines)


def _plot_training_text(axes: Axes, metrics: Sequence[Line]) -> bool:
    for phase, label in (("warm_start", "teacher-written"), ("on_policy", "student-written")):
        _curve(axes, [line for line in metrics if line.get("phase") == phase], "teacher/bits_per_byte", label)
    return bool(axes.lines)


def _plot_teachers(axes: Axes, metrics: Sequence[Line]) -> bool:
    """Nothing where there is only one: it is the loss."""
    names = sorted({key.split("/")[1] for line in metrics for key in line if _TEACHER_LOSS.fullmatch(key)})
    for name in names:
        _curve(axes, metrics, f"teachers/{name}/loss", name)
    return len(names) > 1


def _plot_cases(axes: Axes, metrics: Sequence[Line]) -> bool:
    return _stack(axes, metrics, [(f"rows/{case}", case) for case in _CASES])


def _plot_times(axes: Axes, metrics: Sequence[Line]) -> bool:
    return _stack(axes, metrics, _TIMES)


def _curve(axes: Axes, lines: Sequence[Line], key: str, label: str) -> None:
    points = [(line["step"], line[key]) for line in lines if key in line]
    if points:
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)


def _stack(axes: Axes, lines: Sequence[Line], keys: Sequence[tuple[str, str]]) -> bool:
    """Stacked bars of the quantities that occur."""
    steps = [line["step"] for line in lines]
    bottoms = [0.0] * len(lines)
    drawn = False
    for key, label in keys:
        heights = [float(line.get(key, 0.0)) for line in lines]
        if any(heights):
            axes.bar(steps, heights, bottom=bottoms, label=label, width=0.9)
            bottoms = [b + h for b, h in zip(bottoms, heights, strict=True)]
            drawn = True
    return drawn
