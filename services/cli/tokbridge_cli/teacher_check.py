"""`tokbridge teacher check URL`: whether a running teacher will do for a run, in a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokbridge.client import TeacherClient
from tokbridge.registration import StudentRegistration
from tokbridge_cli.checks.result import Check, Status
from tokbridge_cli.checks.teacher import check_teacher
from tokbridge_cli.settings_options import settings_of, with_options_of
from tokbridge_cli.teacher_connection import AsJson, TeacherConnection, Urls

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "red"}


@with_options_of(TeacherConnection)
def run(
    *,
    urls: Urls,
    tokens: Annotated[int | None, typer.Option(min=1, help="Teacher tokens of prompt and response that fit.")] = None,
    as_json: AsJson = False,
    **connection: Any,
) -> None:
    """Check a running teacher, all its replicas if several URLs are given; exit with 1 if something fails."""
    connecting = settings_of(TeacherConnection, connection)
    checks = asyncio.run(_check(connecting.open_client(urls), connecting.load_student(), tokens))
    failed = [check.name for check in checks if check.status is Status.FAILED]
    if as_json:
        typer.echo(json.dumps({"ok": not failed, "checks": [asdict(check) for check in checks]}))
    else:
        Console().print(_table(checks))
        typer.echo(f"failed: {', '.join(failed)}" if failed else "all a trainer needs is there")
    if failed:
        raise typer.Exit(1)


async def _check(client: TeacherClient, student: StudentRegistration, tokens: int | None) -> list[Check]:
    async with client:
        return await check_teacher(client, student, needed_tokens=tokens)


def _table(checks: Sequence[Check]) -> Table:
    table = Table("check", "", "what was found")
    for check in checks:
        table.add_row(check.name, Text(check.status, _STYLES[check.status]), Text(check.message))
    return table
