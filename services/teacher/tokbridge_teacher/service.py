"""A teacher as protocols see it: who it is, registering students, scoring. They call this and nothing below it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tokbridge import __version__
from tokbridge.description import Limits, TeacherDescription
from tokbridge.errors import ShuttingDownError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_teacher.admission import Cost
from tokbridge_teacher.backends.base import Backend
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.faults import internal_faults
from tokbridge_teacher.model_health import ModelHealth, ModelState
from tokbridge_teacher.observability.calls import CallRecord
from tokbridge_teacher.observability.metrics import ServiceMetrics
from tokbridge_teacher.observability.observer import RequestObserver
from tokbridge_teacher.preparation import RequestPreparer
from tokbridge_teacher.routing.statistics import RoutingStatistics
from tokbridge_teacher.scoring import ResponseScorer
from tokbridge_teacher.settings import RequestLimits
from tokbridge_teacher.students import StudentRegistry
from tokbridge_teacher.workers import ServiceBounds, Workers, leased

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
        students: StudentRegistry,
        limits: RequestLimits,
        bounds: ServiceBounds,
        workers: Workers,
        observer: RequestObserver,
        health: ModelHealth,
    ) -> None:
        self._profile = profile
        self._backend = backend.describe()
        self._students = students
        self.limits = limits
        self.contract_limits = Limits(
            max_top_k=limits.max_top_k,
            max_response_bytes=limits.max_response_bytes,
            max_conversation_bytes=limits.max_conversation_bytes,
            max_vocabulary_size=limits.max_vocabulary_size,
            max_vocabulary_bytes=limits.max_vocabulary_bytes,
            max_tokens_in_flight=bounds.max_tokens_in_flight,
        )
        self._workers = workers
        self.observer = observer
        preparer = RequestPreparer(profile, limits, self._backend.context_length)
        self._scorer = ResponseScorer(preparer, workers, bounds, observer)
        self._instance_id = uuid.uuid4().hex
        self._health = health
        self.serving = False
        """Whether its operator wants it to take requests: not before it is built, and not once it stops."""

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.serving and self._health.state is ModelState.COMPUTES

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: no request waits, runs or has rows left for its caller."""
        return self._workers.idle

    @property
    def metrics(self) -> ServiceMetrics:
        """What it counts."""
        return self.observer.metrics

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

    async def register(self, read: Callable[[], StudentRegistration], caller: Caller = ANONYMOUS) -> Registered:
        """Make a student known and pair it with this teacher in every mode it can use.

        Args:
            read: gives the registration; takes CPU time, so it is called in the thread pool.
            caller: whose work it is.

        Raises:
            ShuttingDownError: not any more, or not while the model fails.
            OverloadedError: too many register already.
            TokbridgeError: what `read` raises, or a vocabulary that cannot be paired.
        """
        self._check_ready()
        with leased(self._workers.registrations, caller, Cost(tokens=1)):
            registration = await self._workers.register(caller, read)
            student, already_known = self._students.find(registration)
            tables = [await self._workers.register(caller, partial(student.tables, mode)) for mode in student.routings]
            self._students.keep(student)  # not before it can be paired: it takes another one's place
        return Registered(registration.student_id, already_known, tuple(pair.statistics for pair in tables))

    async def score(
        self,
        student_id: str,
        request: ScoreRequest,
        caller: Caller = ANONYMOUS,
        deadline_s: float | None = None,
        call: CallRecord | None = None,
    ) -> AsyncGenerator[TargetRows | ScoreSummary]:
        """Rows of one response as they are computed, then the summary.

        Close the iterator (`contextlib.aclosing`) when the caller goes away: that takes the response off the queue or
        stops its computation at its next chunk.

        Args:
            student_id: as registered.
            request: the turn to score.
            caller: whose work it is.
            deadline_s: on `time.monotonic`; after it nothing more is computed for this request.
            call: the protocol's side of what is observed.

        Raises:
            OverloadedError: not now; its details say when to come back.
            TokbridgeError: typed; unexpected faults are logged under the request's id and become `InternalError`.
        """
        observed = self.observer.request(
            request.request_id,
            caller,
            call or CallRecord(),
            deadline_s=deadline_s,
            stopping=lambda: not self.serving,
        )
        with observed as seen, internal_faults(request.request_id):
            self._check_ready()
            student = self._students.get(student_id)
            seen.student_id = student_id
            async with aclosing(self._scorer.score(seen, student, request, deadline_s)) as parts:
                async for part in parts:
                    yield part

    def _check_ready(self) -> None:
        if not self.serving:
            raise ShuttingDownError("The service is not ready, or is stopping.")
        if not self.ready:
            raise ShuttingDownError("The teacher model fails; requests are taken again once it computes.")
