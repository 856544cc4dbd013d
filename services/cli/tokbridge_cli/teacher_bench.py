"""`tokbridge teacher bench URL`: how fast a running teacher scores, measured from a client."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokbridge.client import TeacherClient
from tokbridge.description import TeacherDescription
from tokbridge.registration import StudentRegistration
from tokbridge_cli.load_generator import LoadPlan, LoadReport, generate_load
from tokbridge_cli.sample_requests import SampleRequests, default_conversations, read_conversations
from tokbridge_cli.settings_options import settings_of, with_options_of
from tokbridge_cli.teacher_connection import AsJson, TeacherConnection, Urls

_DEFAULT_REQUESTS = 64


@with_options_of(TeacherConnection)
def run(
    *,
    urls: Urls,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 16,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests made; 64 if no time is given either.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="No request begins later than this.")] = None,
    response_tokens: Annotated[int, typer.Option(min=1, help="Student tokens of a response.")] = 256,
    prompts: Annotated[Path | None, typer.Option(help="JSONL with `messages` or `prompt`; else questions.")] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of prompts and responses.")] = 0,
    as_json: AsJson = False,
    **connection: Any,
) -> None:
    """Put a running teacher under load and print what it does; exit with 1 if a request failed."""
    connecting = settings_of(TeacherConnection, connection)
    client = connecting.open_client(urls)
    registration = connecting.load_student()
    conversations = default_conversations() if prompts is None else read_conversations(prompts)
    samples = SampleRequests(registration, conversations, response_tokens=response_tokens, seed=seed)
    plan = LoadPlan(concurrency, _DEFAULT_REQUESTS if requests is None and seconds is None else requests, seconds)
    teacher, report = asyncio.run(_measure(client, registration, samples, plan))
    if as_json:
        setting = {"model": teacher.model, "student": registration.name, "response_tokens": response_tokens}
        typer.echo(json.dumps({**setting, "concurrency": concurrency, **asdict(report)}))
    else:
        Console().print(_table(teacher, registration, report))
    if report.errors or not report.requests:
        raise typer.Exit(1)


async def _measure(
    client: TeacherClient, registration: StudentRegistration, samples: SampleRequests, plan: LoadPlan
) -> tuple[TeacherDescription, LoadReport]:
    """Connect, score one response that does not count, then the plan."""
    supply = iter(samples)
    async with client:
        teacher = await client.connect(registration)
        await client.score(next(supply))
        return teacher, await generate_load(client, supply, plan)


def _table(teacher: TeacherDescription, student: StudentRegistration, report: LoadReport) -> Table:
    table = Table("", "", show_header=False)
    table.add_row("teacher", Text(f"{teacher.model} ({teacher.dtype}, {teacher.device})"))
    table.add_row("student", Text(student.name))
    table.add_row("requests answered", f"{report.requests:,} in {report.seconds:.2f} s")
    table.add_row("requests/s", f"{report.requests_per_second:,.2f}")
    table.add_row("teacher tokens/s", f"{report.teacher_tokens_per_second:,.1f}")
    table.add_row("  of them content", f"{report.content_tokens_per_second:,.1f}")
    table.add_row("rows/s", f"{report.rows_per_second:,.1f}")
    for name, seconds in report.latency_seconds.items():
        table.add_row(f"latency {name}", f"{seconds:.3f} s")
    table.add_row("bytes a row on the wire", f"{report.bytes_per_row:.1f}")
    table.add_row("prompt tokens shared", f"{report.shared_prompt_share:.1%}")
    for title, counts in (("errors", report.errors), ("retries", report.retries)):
        shown = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
        table.add_row(title, shown or "none")
    return table
