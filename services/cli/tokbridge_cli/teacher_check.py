"""`tokbridge teacher check URL`: whether a running teacher will do for a run, in a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokbridge.client import ClientCredentials, TeacherClient
from tokbridge.registration import StudentRegistration
from tokbridge_cli.checks.result import Check, Status
from tokbridge_cli.checks.teacher import check_teacher
from tokbridge_cli.teacher_connection import (
    ApiKeyEnv,
    ApiKeyFile,
    AsJson,
    CaFile,
    CertificateFile,
    ConnectTimeout,
    KeyFile,
    StudentTokenizer,
    Urls,
    load_student,
    open_client,
)

_STYLES = {Status.OK: "green", Status.WARNING: "yellow", Status.FAILED: "red"}


def run(
    urls: Urls,
    tokens: Annotated[int | None, typer.Option(min=1, help="Teacher tokens of prompt and response that fit.")] = None,
    student: StudentTokenizer = None,
    connect_timeout_s: ConnectTimeout = 30.0,
    api_key_file: ApiKeyFile = None,
    api_key_env: ApiKeyEnv = None,
    tls_ca: CaFile = None,
    tls_certificate: CertificateFile = None,
    tls_key: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Check a running teacher, all its replicas if several URLs are given; exit with 1 if something fails."""
    credentials = ClientCredentials.from_files(
        ca=tls_ca, certificate=tls_certificate, key=tls_key, api_key_file=api_key_file, api_key_env=api_key_env
    )
    client = open_client(urls, credentials, connect_timeout_s=connect_timeout_s)
    checks = asyncio.run(_check(client, load_student(student), tokens))
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
