"""What a person sees while a run goes on: a progress bar with the latest figures, and a line for each event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_SHOWN = {
    "loss": "loss {:.4f}",
    "teacher/bits_per_byte": "teacher bits/byte {:.3f}",
    "emitted/log_ratio": "log-ratio {:+.3f}",
    "policy_lag/mean": "lag {:.1f}",
    "samples/dropped": "dropped {:.0f}",
    "tokens_per_s": "{:.0f} tok/s",
}


class ProgressDisplay:
    """A bar over the steps of a run; a plain line for each step where the output is no terminal."""

    def __init__(self, console: Console, progress: Progress | None, task: TaskID | None) -> None:
        self._console = console
        self._progress = progress
        self._task = task

    def step(self, step: int, metrics: Mapping[str, float | str]) -> None:
        """Show the figures of a finished step."""
        figures = "  ".join(form.format(metrics[name]) for name, form in _SHOWN.items() if name in metrics)
        if self._progress is None or self._task is None:
            self.event(f"step {step + 1} [{metrics['phase']}]  {figures}")
        else:
            self._progress.update(self._task, completed=step + 1, figures=figures, phase=metrics["phase"])

    def evaluation(self, steps_done: int, metrics: Mapping[str, float]) -> None:
        """Show the figures of an evaluation."""
        figures = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.event(f"after {steps_done} steps: {figures}")

    def event(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_display(enabled: bool, first_step: int, end_step: int, console: Console) -> Iterator[ProgressDisplay]:
    """A display for the block; a bar where it is enabled and the console is a terminal."""
    if not (enabled and console.is_terminal):
        yield ProgressDisplay(console, None, None)
        return
    columns = (
        TextColumn("{task.fields[phase]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("train", total=end_step, completed=first_step, figures="", phase="starting")
        yield ProgressDisplay(console, progress, task)
