"""`tokbridge report RUN`: one HTML file about a training run, from what it left on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokbridge_trainer.report import write_report


def run(
    folder: Annotated[Path, typer.Argument(help="The `output_dir` of a run.")],
    title: Annotated[str, typer.Option(help="Headline; by default the folder's name.")] = "",
    samples: Annotated[int, typer.Option(min=0, help="Pairs of generations shown.")] = 12,
) -> None:
    """Write RUN/report.html and print its path."""
    typer.echo(write_report(folder, title or folder.resolve().name, samples=samples))
