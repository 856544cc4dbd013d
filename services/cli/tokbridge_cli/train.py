"""`tokbridge train CONFIG.yaml`: reads the configuration, then hands over to the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokbridge_trainer.config_loading import dump_config, load_config


def run(
    config: Annotated[Path, typer.Argument(help="YAML file with the run's configuration.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Distil teachers into a student, from a YAML config."""
    resolved = load_config(config, overrides or ())
    if dry_run:
        typer.echo(dump_config(resolved), nl=False)
        return
    from tokbridge_trainer.train import run_training  # torch and ray: not for a dry run

    run_training(resolved)
