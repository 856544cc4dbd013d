"""Sends each sample to its teacher the moment it is finished, and keeps the targets until their step is trained.

One client for all URLs, which are replicas of one teacher; it keeps the samples of one prompt together. In a run the
feed lives in an asynchronous Ray actor; nothing here depends on that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.expectation import TeacherExpectation
from tokbridge.client.teacher_client import TeacherClient
from tokbridge.description import TeacherDescription
from tokbridge.errors import TokbridgeError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult
from tokbridge_trainer.config_sections import TeacherConfig
from tokbridge_trainer.sample_traces import NoTraces, SampleTracer, open_sample_traces
from tokbridge_trainer.samples import Sample, SampleKey, ScoredSample, StepBatch
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
        """Release the channels."""
        ...


@dataclass(frozen=True)
class FeedReport:
    """How long a step's targets took."""

    seconds: float
    """From the first sample's arrival to the last outcome."""


ClientFactory = Callable[[TeacherConfig, ClientCredentials], Scorer]


def make_client(teacher: TeacherConfig, credentials: ClientCredentials) -> Scorer:
    """The real client of a teacher."""
    return TeacherClient(
        teacher.urls,
        timeout_s=teacher.timeout_s,
        connect_timeout_s=teacher.timeout_s,
        expectation=TeacherExpectation(routing=Routing(teacher.routing), spanning=Spanning(teacher.spanning)),
        max_divergence=teacher.max_replica_divergence,
        credentials=credentials,
    )


class Feed:
    """Scores samples concurrently and hands out the batch of each step."""

    def __init__(
        self,
        teacher: TeacherConfig,
        student: StudentRegistration,
        template_arguments: dict[str, Any],
        credentials: ClientCredentials,
        client_factory: ClientFactory = make_client,
        traces: NoTraces | SampleTracer | None = None,
    ) -> None:
        """`traces`: None opens those that the environment asks for."""
        self._traces = open_sample_traces() if traces is None else traces
        self._teacher = teacher
        self._student = student
        self._template_arguments = template_arguments
        self._credentials = credentials
        self._client_factory = client_factory
        self._client: Scorer | None = None
        self._slots = asyncio.Semaphore(teacher.max_in_flight * len(teacher.urls))
        self._steps: dict[int, StepCollector] = {}
        self._first_arrival: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()

    async def connect(self) -> TeacherDescription:
        """Connect to the replicas, check that they agree and offer the modes, and register the student.

        Raises:
            TokbridgeError: none answers, or they are not the teacher that is meant.
        """
        self._client = self._client_factory(self._teacher, self._credentials)
        return await self._client.connect(self._student)

    async def submit(self, sample: Sample) -> None:
        """Take a finished sample and start scoring it; a sample that was here before is not scored again."""
        step = sample.key.step
        collector = self._steps.setdefault(step, StepCollector())
        self._first_arrival.setdefault(step, time.monotonic())
        if collector.expect(sample.key):
            task = asyncio.create_task(self._resolve(sample, collector))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def submit_all(self, samples: Sequence[Sample]) -> None:
        """Take samples of steps that are being collected; a step that has been handed out needs none."""
        for sample in samples:
            if sample.key.step in self._steps:
                await self.submit(sample)

    async def arrived(self, step: int) -> frozenset[SampleKey] | None:
        """Which samples of a step are here, scored or not; None: the step has been handed out."""
        collector = self._steps.get(step)
        return None if collector is None else collector.keys

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
        """Cancel what is under way, release the channels and send the last traces."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()
        await asyncio.to_thread(self._traces.close)

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
        assert self._client is not None, "connect comes first"
        async with self._slots:
            with self._traces.scoring(sample.key):
                return ScoredSample(sample, await self._client.score(self._request(sample)))

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
