"""One admitted request, from its request to its rows: prepare, queue, compute, assemble, release, summarize.

CPU work runs in thread pools and the model in the scheduler's worker, so the event loop only moves results. A request
holds a lease from its arrival until its last row was taken. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial

from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary, Timings
from tokbridge.targets import TargetRows
from tokbridge_teacher.admission import Lease
from tokbridge_teacher.backends.base import ScoreJob
from tokbridge_teacher.cancellations import SlowReaderError
from tokbridge_teacher.costs import chunk_rows_within, estimated_cost, measured_cost
from tokbridge_teacher.observability.calls import ObservedRequest, QueueTimes
from tokbridge_teacher.observability.observer import RequestObserver
from tokbridge_teacher.preparation import PreparedResponse, RequestPreparer
from tokbridge_teacher.streams import Finished, ResponseStream
from tokbridge_teacher.students import Student
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.workers import ServiceBounds, Workers, leased


class ResponseScorer:
    """Scores responses of one service."""

    def __init__(
        self, preparer: RequestPreparer, workers: Workers, bounds: ServiceBounds, observer: RequestObserver
    ) -> None:
        self._preparer = preparer
        self._workers = workers
        self._bounds = bounds
        self._observer = observer

    async def score(
        self, seen: ObservedRequest, student: Student, request: ScoreRequest, deadline_s: float | None
    ) -> AsyncGenerator[TargetRows | ScoreSummary]:
        """Admit and prepare a request, then score it; its lease ends with the iterator.

        Raises:
            OverloadedError: not now.
            DeadlineExceededError: `deadline_s`, on `time.monotonic`, passed before all was computed.
            TokbridgeError: what preparation and the model raise.
        """
        estimate = estimated_cost(request, self._bounds.max_tokens_in_flight)
        admission = self._workers.admission
        with leased(admission, seen.caller, estimate) as lease:
            seen.admitted = True
            prepared = await self._workers.prepare(
                seen.caller, estimate.tokens, partial(self._preparer.prepare, request, student)
            )
            seen.prepared(time.monotonic(), prepared.num_tokens)
            chunk_rows = chunk_rows_within(prepared, self._bounds.max_chunk_bytes)
            admission.settle(lease, measured_cost(prepared))
            stream = ResponseStream(asyncio.get_running_loop(), deadline_s=deadline_s)
            async with aclosing(self._rows(seen, prepared, chunk_rows, stream)) as parts:
                async for part in parts:
                    with self._unread(seen, stream, lease):
                        yield part

    async def _rows(
        self, seen: ObservedRequest, prepared: PreparedResponse, chunk_rows: int, stream: ResponseStream
    ) -> AsyncGenerator[TargetRows | ScoreSummary]:
        """Queue a prepared response and assemble its rows as chunks of it are computed."""
        prepared_at = time.monotonic()
        ticket = self._workers.scheduler.submit(_job(prepared, chunk_rows, stream), stream.start, seen.caller)
        assembler = RowAssembler(prepared.plan, prepared.tables)
        shared_prompt_tokens = 0
        try:
            async for event in stream.events():
                if isinstance(event, Finished):
                    shared_prompt_tokens = event.shared_prompt_tokens
                    break
                rows = await self._workers.assemble(assembler, event)
                if rows.num_rows:
                    self._observer.released(seen, rows)
                    yield rows
        finally:
            stream.close()
            self._workers.scheduler.cancel(ticket)
            seen.queue = QueueTimes(stream.created_at, stream.started_at)
        assembler.finish()
        finished_at = time.monotonic()
        timings = Timings(
            prepare_s=prepared_at - seen.received_s,
            queue_s=stream.queue_seconds,
            compute_s=finished_at - prepared_at - stream.queue_seconds,
            total_s=finished_at - seen.received_s,
        )
        summary = _summary(prepared, assembler, timings, shared_prompt_tokens)
        self._observer.answered(seen, summary)
        yield summary

    @contextmanager
    def _unread(self, seen: ObservedRequest, stream: ResponseStream, lease: Lease) -> Iterator[None]:
        """While a part is with the caller: one that takes nothing more in time loses its rows and its place."""

        def give_up() -> None:
            seconds = self._bounds.read_timeout_s
            seen.reads_too_slowly = True
            stream.give_up(SlowReaderError(f"The caller took no rows for {seconds:g} seconds."))
            self._workers.admission.release(lease)

        timer = asyncio.get_running_loop().call_later(self._bounds.read_timeout_s, give_up)
        try:
            yield
        finally:
            timer.cancel()


def _summary(
    prepared: PreparedResponse, assembler: RowAssembler, timings: Timings, shared_prompt_tokens: int
) -> ScoreSummary:
    return ScoreSummary(
        cases=assembler.case_counts,
        seam=prepared.prompt.seam,
        notes=prepared.notes,
        prompt_tokens=len(prepared.prompt_ids),
        shared_prompt_tokens=shared_prompt_tokens,
        content_tokens=len(prepared.plan.teacher_ids),
        content_log_prob=assembler.content_log_prob,
        stop_log_prob=assembler.stop_log_prob,
        scored_bytes=prepared.scored_bytes,
        unresolved_mass=assembler.unresolved_mass,
        lookahead_tail=assembler.lookahead_tail,
        timings=timings,
    )


def _job(prepared: PreparedResponse, chunk_rows: int, stream: ResponseStream) -> ScoreJob:
    return ScoreJob(
        prompt_ids=prepared.prompt_ids,
        plan=prepared.plan,
        tables=prepared.device_tables,
        cancelled=stream.cancelled,
        emit=stream.emit,
        finish=stream.finish,
        fail=stream.fail,
        max_chunk_rows=chunk_rows,
    )
