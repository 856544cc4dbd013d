"""Calls a teacher from several workers at once and says how it did."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tokbridge.client import TeacherClient
from tokbridge.errors import TokbridgeError
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult

_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class LoadPlan:
    """How much is asked; at least one of the last two."""

    concurrency: int
    """Requests under way at once."""
    max_requests: int | None = None
    seconds: float | None = None
    """No request begins later."""


@dataclass
class LoadTally:
    """What came back."""

    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies_s: list[float] = field(default_factory=list)
    """Of answers; retries and their waits count."""
    rows: int = 0
    prompt_tokens: int = 0
    shared_prompt_tokens: int = 0
    content_tokens: int = 0
    scored_bytes: int = 0
    received_bytes: int = 0
    """Of all answers, failed attempts included."""
    errors: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)

    def add(self, result: ScoreResult, latency_s: float) -> None:
        """One answer."""
        self.latencies_s.append(latency_s)
        self.rows += result.rows.num_rows
        self.prompt_tokens += result.prompt_tokens
        self.shared_prompt_tokens += result.shared_prompt_tokens
        self.content_tokens += result.content_tokens
        self.scored_bytes += result.scored_bytes


@dataclass(frozen=True)
class LoadReport:
    """The figures of one run. Rates are over its whole length."""

    seconds: float
    requests: int
    """Answered."""
    errors: dict[str, int]
    """Requests that were not, by error code."""
    retries: dict[str, int]
    """Attempts that were made again, by error code."""
    requests_per_second: float
    teacher_tokens_per_second: float
    """Prompt and content; a prompt shared by several responses counts for each."""
    content_tokens_per_second: float
    rows_per_second: float
    latency_seconds: dict[str, float]
    """p50, p95, p99, of answers."""
    bytes_per_row: float
    """On the wire, without the framing of gRPC."""
    shared_prompt_share: float
    """Part of the prompt tokens that were computed once for several responses."""


def report_of(tally: LoadTally) -> LoadReport:
    """Figures; 0 where nothing was answered."""
    seconds = max(tally.seconds, 1e-9)
    teacher_tokens = tally.prompt_tokens + tally.content_tokens
    latencies = tally.latencies_s or [0.0]
    return LoadReport(
        seconds=tally.seconds,
        requests=len(tally.latencies_s),
        errors=dict(tally.errors),
        retries=dict(tally.retries),
        requests_per_second=len(tally.latencies_s) / seconds,
        teacher_tokens_per_second=teacher_tokens / seconds,
        content_tokens_per_second=tally.content_tokens / seconds,
        rows_per_second=tally.rows / seconds,
        latency_seconds={f"p{percent}": float(np.percentile(latencies, percent)) for percent in _PERCENTILES},
        bytes_per_row=tally.received_bytes / max(1, tally.rows),
        shared_prompt_share=tally.shared_prompt_tokens / max(1, tally.prompt_tokens),
    )


async def generate_load(
    client: TeacherClient,
    requests: Iterator[ScoreRequest],
    plan: LoadPlan,
    clock: Callable[[], float] = time.monotonic,
) -> LoadReport:
    """Run a plan on a connected client; errors of calls are counted, not raised.

    Args:
        client: connected.
        requests: at least as many as the plan takes.
        plan: how much.
        clock: seconds that only grow.
    """
    tally = LoadTally()
    before = client.statistics
    started_s = clock()
    left = iter(range(plan.max_requests)) if plan.max_requests is not None else None

    def wanted() -> bool:
        in_time = plan.seconds is None or clock() - started_s < plan.seconds
        return in_time and (left is None or next(left, None) is not None)

    async def work() -> None:
        while wanted():
            request, began_s = next(requests), clock()
            try:
                result = await client.score(request)
            except TokbridgeError as error:
                tally.errors[error.code.value] += 1
            else:
                tally.add(result, clock() - began_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(plan.concurrency):
            group.create_task(work())
    tally.seconds = clock() - started_s
    tally.retries = client.statistics.retries - before.retries
    tally.received_bytes = client.statistics.received_bytes - before.received_bytes
    return report_of(tally)
