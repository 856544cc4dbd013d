"""Sends each sample to its teacher the moment it is finished, and keeps the targets until their step is trained.

One client for each URL. All URLs serve one teacher; samples of one prompt go to the same URL, so that a service can
share the prompt's computation. In a run the feed lives in an asynchronous Ray actor; nothing here depends on that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tokbridge.client.expectation import TeacherExpectation
from tokbridge.client.teacher_client import TeacherClient
from tokbridge.description import TeacherDescription
from tokbridge.errors import TeacherMismatchError, TokbridgeError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult
from tokbridge_trainer.config_sections import TeacherConfig
from tokbridge_trainer.samples import Sample, ScoredSample, StepBatch
from tokbridge_trainer.step_collector import StepCollector


class Scorer(Protocol):
    """What the feed needs of a teacher client."""

    async def connect(self, student: StudentRegistration) -> TeacherDescription:
        """Shake hands and register."""
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one response, retrying what is safe."""
        ...

    async def close(self) -> None:
        """Release the channel."""
        ...


@dataclass(frozen=True)
class FeedReport:
    """How long a step's targets took."""

    seconds: float
    """From the first sample's arrival to the last outcome."""


ClientFactory = Callable[[str, TeacherConfig], Scorer]


def make_client(url: str, teacher: TeacherConfig) -> Scorer:
    """The real client of a URL."""
    expectation = TeacherExpectation(routing=Routing(teacher.routing), spanning=Spanning(teacher.spanning))
    return TeacherClient(url, timeout_s=teacher.timeout_s, connect_timeout_s=teacher.timeout_s, expectation=expectation)


class Feed:
    """Scores samples concurrently and hands out the batch of each step."""

    def __init__(
        self,
        teacher: TeacherConfig,
        student: StudentRegistration,
        template_arguments: dict[str, Any],
        client_factory: ClientFactory = make_client,
    ) -> None:
        self._teacher = teacher
        self._student = student
        self._template_arguments = template_arguments
        self._client_factory = client_factory
        self._clients: list[Scorer] = []
        self._slots: list[asyncio.Semaphore] = []
        self._steps: dict[int, StepCollector] = {}
        self._first_arrival: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def connect(self) -> TeacherDescription:
        """Connect to every URL, check that the modes are offered, and register the student.

        Raises:
            TeacherMismatchError: the URLs serve different teachers.
        """
        self._clients = [self._client_factory(url, self._teacher) for url in self._teacher.urls]
        self._slots = [asyncio.Semaphore(self._teacher.max_in_flight) for _ in self._clients]
        first, *others = await asyncio.gather(*(client.connect(self._student) for client in self._clients))
        for url, other in zip(self._teacher.urls[1:], others, strict=True):
            if other.identity != first.identity:
                raise TeacherMismatchError(f"{url} serves {other.model}, {self._teacher.urls[0]} serves {first.model}")
        return first

    async def submit(self, sample: Sample) -> None:
        """Take a finished sample and start scoring it; a sample that was here before is not scored again."""
        step = sample.key.step
        collector = self._steps.setdefault(step, StepCollector())
        self._first_arrival.setdefault(step, time.monotonic())
        if collector.expect(sample.key):
            task = asyncio.create_task(self._resolve(sample, collector))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def collect(self, step: int, num_samples: int) -> tuple[FeedReport, StepBatch]:
        """Wait until all samples of a step have their outcome, and hand them out; the step is forgotten here.

        Raises:
            TokbridgeError: a sample could not be scored and `on_failure` is `raise`.
        """
        collector = self._steps.setdefault(step, StepCollector())
        async with self._changed:
            await self._changed.wait_for(lambda: collector.failure or collector.num_resolved >= num_samples)
        if collector.failure:
            raise collector.failure
        del self._steps[step]
        seconds = time.monotonic() - self._first_arrival.pop(step, time.monotonic())
        return FeedReport(seconds), collector.batch()

    async def close(self) -> None:
        """Cancel what is under way and release the channels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _resolve(self, sample: Sample, collector: StepCollector) -> None:
        """Score a sample and record the outcome. Any fault is one: it must reach `collect`, or a step would hang."""
        (outcome,) = await asyncio.gather(self._score(sample), return_exceptions=True)
        if isinstance(outcome, ScoredSample):
            collector.add(outcome)
        elif isinstance(outcome, TokbridgeError) and self._teacher.on_failure == "drop":
            collector.drop(outcome)
        else:
            collector.fail(outcome)
        async with self._changed:
            self._changed.notify_all()

    async def _score(self, sample: Sample) -> ScoredSample:
        index = sample.key.prompt_index % len(self._clients)
        async with self._slots[index]:
            return ScoredSample(sample, await self._clients[index].score(self._request(sample)))

    def _request(self, sample: Sample) -> ScoreRequest:
        teacher, prompt = self._teacher, sample.prompt
        return ScoreRequest(
            messages=prompt.messages,
            tools=prompt.tools or (),
            template_arguments=self._template_arguments,
            student_tail=prompt.student_tail,
            response=sample.response,
            token_ids=sample.token_ids,
            stop_id=sample.stop_id,
            routing=Routing(teacher.routing),
            spanning=Spanning(teacher.spanning),
            top_k=teacher.top_k,
            mass=teacher.mass,
            request_id=f"step{sample.key.step}-prompt{sample.key.prompt_index}-sample{sample.key.sample_index}",
        )
