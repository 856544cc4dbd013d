"""`tokbridge conformance FILE`: check the target builder against a file of cases with known answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tokbridge_teacher.offline.conformance import TOLERANCE, CaseResult, check_file


def run(
    file: Annotated[Path, typer.Argument(help="Cases, in one of the two formats of the vectors.", dir_okay=False)],
) -> None:
    """Print passed and failed cases and the largest difference; exit with 1 if one is above the tolerance."""
    results = list(check_file(file))
    failed = [result for result in results if not result.passed]
    typer.echo(f"{len(results) - len(failed)} passed, {len(failed)} failed (a case in each spanning mode counts once)")
    if results:
        worst = max(results, key=lambda result: result.largest_difference)
        typer.echo(f"largest difference {worst.largest_difference:.3g}, tolerance {TOLERANCE:.0e}")
    for result in failed:
        typer.echo(_failure(result))
    if failed or not results:
        raise typer.Exit(1)


def _failure(result: CaseResult) -> str:
    return f"failed: case {result.name}, row {result.row}, difference {result.largest_difference:.3g}"
