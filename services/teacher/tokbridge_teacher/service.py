"""One request from end to end, protocol-free: prepare, queue, compute, assemble, release rows, summarize.

CPU work runs in a thread pool and the model in the scheduler's worker, so the event loop only moves results. Protocols
call this and nothing below it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from tokbridge import __version__
from tokbridge.description import Limits, TeacherDescription
from tokbridge.errors import ShuttingDownError, TokbridgeError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary, Timings
from tokbridge.targets import TargetRows
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_teacher.backends.base import Backend, ScoreJob
from tokbridge_teacher.faults import internal_faults
from tokbridge_teacher.metrics import ServiceMetrics
from tokbridge_teacher.preparation import PreparedResponse, RequestPreparer
from tokbridge_teacher.routing.statistics import RoutingStatistics
from tokbridge_teacher.scheduling import Scheduler
from tokbridge_teacher.settings import RequestLimits
from tokbridge_teacher.streams import Finished, ResponseStream
from tokbridge_teacher.students import StudentRegistry
from tokbridge_teacher.targets.assembly import RowAssembler

Result = TypeVar("Result")


@dataclass(frozen=True)
class Registered:
    """The answer to a registration."""

    student_id: str
    already_known: bool
    statistics: tuple[RoutingStatistics, ...]
    """One for each routing mode the student can use."""


class TeacherService:
    """Scores responses for registered students."""

    def __init__(
        self,
        *,
        profile: TokenizerProfile,
        backend: Backend,
        scheduler: Scheduler,
        students: StudentRegistry,
        limits: RequestLimits,
        max_tokens_in_flight: int,
        executor: Executor,
        metrics: ServiceMetrics,
    ) -> None:
        self._profile = profile
        self._backend = backend.describe()
        self._scheduler = scheduler
        self._students = students
        self.contract_limits = Limits(
            max_top_k=limits.max_top_k,
            max_response_bytes=limits.max_response_bytes,
            max_conversation_bytes=limits.max_conversation_bytes,
            max_vocabulary_size=limits.max_vocabulary_size,
            max_vocabulary_bytes=limits.max_vocabulary_bytes,
            max_tokens_in_flight=max_tokens_in_flight,
        )
        self._executor = executor
        self.metrics = metrics
        self._preparer = RequestPreparer(profile, limits, self._backend.context_length)
        self._instance_id = uuid.uuid4().hex
        self.ready = False

    def describe(self) -> TeacherDescription:
        """Who this teacher is."""
        return TeacherDescription(
            model=self._backend.model,
            vocabulary_fingerprint=self._profile.vocabulary.fingerprint,
            tokenizer_size=self._profile.tokenizer_size,
            head_size=self._backend.head_size,
            stop_ids=frozenset(self._profile.stop_ids),
            chat_template_hash=self._profile.template.hash if self._profile.template else "",
            context_length=self._backend.context_length,
            limits=self.contract_limits,
            routings=frozenset(Routing),
            spannings=frozenset(Spanning),
            version=__version__,
            dtype=self._backend.dtype,
            device=self._backend.device,
            backend=self._backend.backend,
            instance_id=self._instance_id,
        )

    async def register(self, read: Callable[[], StudentRegistration]) -> Registered:
        """Make a student known and pair it with this teacher in every mode it can use.

        Args:
            read: gives the registration; takes CPU time, so it is called in the thread pool.

        Raises:
            TokbridgeError: what `read` raises, or a vocabulary that cannot be paired.
        """
        registration = await self._in_thread(read)
        student, already_known = self._students.register(registration)
        tables = [await self._in_thread(student.tables, routing) for routing in student.routings]
        return Registered(registration.student_id, already_known, tuple(pair.statistics for pair in tables))

    async def score(self, student_id: str, request: ScoreRequest) -> AsyncGenerator[TargetRows | ScoreSummary]:
        """Rows of one response as they are computed, then the summary.

        Close the iterator (`contextlib.aclosing`) when the caller goes away: that takes the response off the queue or
        stops its computation.

        Raises:
            TokbridgeError: typed; unexpected faults are logged under the request's id and become `InternalError`.
        """
        outcome = "cancelled"
        try:
            with internal_faults(request.request_id):
                async with aclosing(self._score(student_id, request)) as parts:
                    async for part in parts:
                        yield part
            outcome = "ok"
        except TokbridgeError as error:
            outcome = error.code.value
            raise
        finally:
            self.metrics.count_request(outcome)

    async def _score(self, student_id: str, request: ScoreRequest) -> AsyncGenerator[TargetRows | ScoreSummary]:
        received_at = time.monotonic()
        if not self.ready:
            raise ShuttingDownError("The service is not ready, or is stopping.")
        student = self._students.get(student_id)
        prepared = await self._in_thread(self._preparer.prepare, request, student)
        prepared_at = time.monotonic()
        stream = ResponseStream(asyncio.get_running_loop())
        ticket = self._scheduler.submit(_job(prepared, stream), stream.start)
        assembler = RowAssembler(prepared.plan, prepared.tables)
        shared_prompt_tokens = 0
        try:
            async for event in stream.events():
                if isinstance(event, Finished):
                    shared_prompt_tokens = event.shared_prompt_tokens
                    break
                rows = await self._in_thread(assembler.add, event)
                if rows.num_rows:
                    yield rows
        finally:
            stream.close()
            self._scheduler.cancel(ticket)
        assembler.finish()
        finished_at = time.monotonic()
        timings = Timings(
            prepare_s=prepared_at - received_at,
            queue_s=stream.queue_seconds,
            compute_s=finished_at - prepared_at - stream.queue_seconds,
            total_s=finished_at - received_at,
        )
        yield self._summary(prepared, assembler, timings, shared_prompt_tokens)

    def _summary(
        self, prepared: PreparedResponse, assembler: RowAssembler, timings: Timings, shared_prompt_tokens: int
    ) -> ScoreSummary:
        summary = ScoreSummary(
            cases=assembler.case_counts,
            seam=prepared.prompt.seam,
            notes=(*self._profile.notes, *prepared.prompt.notes),
            prompt_tokens=len(prepared.prompt_ids),
            shared_prompt_tokens=shared_prompt_tokens,
            content_tokens=len(prepared.plan.teacher_ids),
            content_log_prob=assembler.content_log_prob,
            stop_log_prob=assembler.stop_log_prob,
            scored_bytes=prepared.scored_bytes,
            timings=timings,
        )
        self.metrics.count_answer(summary)
        return summary

    async def _in_thread(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)


def _job(prepared: PreparedResponse, stream: ResponseStream) -> ScoreJob:
    return ScoreJob(
        prompt_ids=prepared.prompt_ids,
        plan=prepared.plan,
        tables=prepared.device_tables,
        cancelled=stream.cancelled,
        emit=stream.emit,
        finish=stream.finish,
        fail=stream.fail,
    )
