"""`tokbridge export CHECKPOINT OUT`: a checkpoint of a training run as an ordinary Hugging Face model."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tokbridge_trainer.export import export_checkpoint


class Dtype(StrEnum):
    """Types that weights are written in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def run(
    checkpoint: Annotated[Path, typer.Argument(help="A folder `checkpoint-…` below a run's `output_dir`.")],
    out: Annotated[Path, typer.Argument(help="Folder of the model to write.")],
    dtype: Annotated[Dtype | None, typer.Option(help="Of the weights; by default what the run computed in.")] = None,
) -> None:
    """Write the model of a checkpoint in Hugging Face format."""
    export_checkpoint(checkpoint, out, dtype)
    typer.echo(out)
