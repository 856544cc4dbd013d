"""One teacher of the list: its connection, how much it holds at once, and its leave.

The student is registered with it by its own client, so any member may have any tokenizer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.expectation import TeacherExpectation
from tokbridge.client.teacher_client import TeacherClient
from tokbridge.description import TeacherDescription
from tokbridge.errors import RequestCancelledError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult
from tokbridge_trainer.config_teachers import MemberConfig
from tokbridge_trainer.sample_traces import NoTraces, SampleTracer
from tokbridge_trainer.samples import Sample
from tokbridge_trainer.teachers.tally import TeacherTally

_NOT_OF_THE_CONNECTION = {"weight", "weight_column", "on_failure"}


class Scorer(Protocol):
    """What a member needs of a teacher client."""

    async def connect(self, student: StudentRegistration) -> TeacherDescription:
        """Shake hands and register."""
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one response, retrying what is safe."""
        ...

    async def close(self) -> None:
        """Release the channels."""
        ...


ClientFactory = Callable[[MemberConfig, ClientCredentials], Scorer]


def make_client(teacher: MemberConfig, credentials: ClientCredentials) -> Scorer:
    """The real client of a teacher."""
    return TeacherClient(
        teacher.urls,
        timeout_s=teacher.timeout_s,
        connect_timeout_s=teacher.timeout_s,
        max_silence_s=teacher.max_silence_s,
        expectation=TeacherExpectation(
            model=teacher.model, routing=Routing(teacher.routing), spanning=Spanning(teacher.spanning)
        ),
        max_divergence=teacher.max_replica_divergence,
        credentials=credentials,
    )


@dataclass(frozen=True)
class StudentSide:
    """What every member needs to know of the student, and how it makes its client."""

    registration: StudentRegistration
    template_arguments: Mapping[str, Any]
    """Of the student's chat template, for teachers without arguments of their own."""
    client_factory: ClientFactory = make_client
    traces: NoTraces | SampleTracer = NoTraces()  # noqa: RUF009  (a constant)
    """Told of every question."""


class Member:
    """A teacher that takes samples until it is retired."""

    def __init__(self, config: MemberConfig, credentials: ClientCredentials, student: StudentSide) -> None:
        """Nothing is sent yet.

        Raises:
            InvalidConfigError: an address or the credentials are wrong.
        """
        self._config = config
        self._credentials = credentials
        self._student = student
        self._client = student.client_factory(config, credentials)
        self._slots = asyncio.Semaphore(config.max_in_flight * len(config.urls))
        self._is_retired = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._num_held = 0
        self._teacher: TeacherDescription | None = None

    @property
    def teacher(self) -> TeacherDescription:
        """Who it is, once connected."""
        assert self._teacher is not None, "connect comes first"
        return self._teacher

    @property
    def label(self) -> str:
        """Model and addresses, for people."""
        return f"{self.teacher.model} at {', '.join(self._config.urls)}"

    @property
    def is_retired(self) -> bool:
        """Whether it has left the list."""
        return self._is_retired

    def serves(self, config: MemberConfig, credentials: ClientCredentials) -> bool:
        """Whether its connection is the one that `config` asks for: all but weight and fallback are the same."""
        same, wanted = (c.model_dump(exclude=_NOT_OF_THE_CONNECTION) for c in (self._config, config))
        return same == wanted and self._credentials == credentials

    async def connect(self) -> TeacherDescription:
        """Connect to the replicas, check that they agree and offer the modes, and register the student.

        Raises:
            TokbridgeError: none answers, or they are not the teacher that is meant.
        """
        self._teacher = await self._client.connect(self._student.registration)
        return self._teacher

    async def score(self, sample: Sample, tally: TeacherTally) -> ScoreResult:
        """Score a sample, once fewer than `max_in_flight` are held.

        Raises:
            RequestCancelledError: it was retired before the sample was sent, or took too long after.
            TokbridgeError: it failed.
        """
        start = time.monotonic()
        tally.asked(self.teacher)
        self._num_held += 1
        self._idle.clear()
        try:
            async with self._slots:
                if self.is_retired:
                    raise RequestCancelledError("the teacher left the list before the sample was sent to it")
                with self._student.traces.scoring(sample.key):
                    result = await self._client.score(self._request(sample))
        finally:
            self._num_held -= 1
            if not self._num_held:
                self._idle.set()
        tally.answered(result, time.monotonic() - start)
        return result

    def retire(self) -> None:
        """Take no more samples; those that wait for a slot find out at once."""
        self._is_retired = True
        for _ in range(self._num_held):
            self._slots.release()

    async def drain(self, grace_s: float) -> None:
        """Close once the samples that were sent are answered, or after `grace_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)
        await self.close()

    async def close(self) -> None:
        """Release the channels; what is under way ends with `RequestCancelledError`."""
        await self._client.close()

    def _request(self, sample: Sample) -> ScoreRequest:
        teacher, prompt, key = self._config, sample.prompt, sample.key
        own_arguments = teacher.chat_template_kwargs
        return ScoreRequest(
            messages=prompt.messages,
            tools=prompt.tools or (),
            template_arguments=self._student.template_arguments if own_arguments is None else own_arguments,
            student_tail=prompt.student_tail,
            response=sample.response,
            token_ids=sample.token_ids,
            stop_id=sample.stop_id,
            routing=Routing(teacher.routing),
            spanning=Spanning(teacher.spanning),
            top_k=teacher.top_k,
            mass=teacher.mass,
            request_id=f"step{key.step}-prompt{key.prompt_index}-sample{key.sample_index}",
        )
