"""The asynchronous client of a teacher service.

    async with TeacherClient("teacher:50051") as client:
        await client.connect(StudentRegistration.from_profile(load_tokenizer(path)))
        result = await client.score(request)

It shakes hands, registers its student by itself, again when the service has forgotten it, and retries what is safe
under one deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Self

import grpc
import grpc.aio

from tokbridge.client.attempts import Attempts, Clock, Sleep
from tokbridge.client.channel import open_channel
from tokbridge.client.expectation import TeacherExpectation
from tokbridge.client.retry import RetryPolicy, RetryState
from tokbridge.client.scoring import Scorer
from tokbridge.client.session import Metadata, Session, Standing
from tokbridge.client.statistics import ClientStatistics
from tokbridge.client.target import parse_target
from tokbridge.description import TeacherDescription
from tokbridge.errors import (
    DeadlineExceededError,
    InvalidConfigError,
    RequestCancelledError,
    TeacherUnavailableError,
    TokbridgeError,
)
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc


class TeacherClient:
    """One student's connection to one teacher. Any number of calls may run at once, in one event loop."""

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 60.0,
        retry: RetryPolicy | None = None,
        expectation: TeacherExpectation | None = None,
        metadata: Metadata = (),
        channel_credentials: grpc.ChannelCredentials | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        random: Random | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            target: `host:port` or `grpc://host:port`, the teacher's gRPC port.
            timeout_s: deadline of one call, over all its attempts and waits.
            connect_timeout_s: the same for `connect`.
            retry: backoff and its limits.
            expectation: the teacher that is meant; any, if left out.
            metadata: sent with every call, such as credentials.
            channel_credentials: for an encrypted channel.
            clock: seconds that only grow.
            sleep: waits for so many seconds.
            random: source of the jitter.

        Raises:
            InvalidConfigError: `target` or a timeout is wrong.
        """
        if not (timeout_s > 0 and connect_timeout_s > 0):
            raise InvalidConfigError("timeouts must be above 0", field="timeout_s")
        self._address = parse_target(target)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._retry = retry or RetryPolicy()
        self._expectation = expectation or TeacherExpectation()
        self._metadata = tuple(metadata)
        self._credentials = channel_credentials
        self._clock = clock
        self._sleep = sleep
        self._random = random or Random()
        self._connection: _Connection | None = None
        self._statistics = ClientStatistics()
        self._closed = False

    async def connect(self, student: StudentRegistration) -> TeacherDescription:
        """Shake hands, check the teacher, and register `student`; waits for a teacher that is still starting.

        Raises:
            TeacherUnavailableError: none answered within `connect_timeout_s`.
            TeacherMismatchError, UnsupportedModeError: not the teacher that is meant.
            LimitExceededError: the student's vocabulary is larger than the teacher allows.
            InvalidConfigError: already connected.
        """
        if self._connection is not None:
            raise InvalidConfigError("this client is already connected; use one client a student", field="student")
        self._connection = self._open(student)
        attempts = self._attempts(self._connection.session, self._connect_timeout_s)
        try:
            return (await _first_standing(attempts)).teacher
        except DeadlineExceededError as error:
            if isinstance(error.__cause__, TeacherUnavailableError):
                raise TeacherUnavailableError(
                    f"no teacher answers at {self._address}: {error.__cause__.message}", address=self._address
                ) from error
            raise

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one response; the rows of the result all come from one attempt whose checksum was right.

        Raises:
            DeadlineExceededError: not within `timeout_s`; its cause is the last failure, if there was one.
            TokbridgeError: what the teacher reported, once trying again could not help.
        """
        return await self._connected().scorer.score(request)

    async def stream(self, request: ScoreRequest) -> AsyncGenerator[TargetRows, None]:
        """Rows of one response as the teacher releases them, each once, in order; close the iterator to cancel.

        After a failure the response is scored again and rows already handed out are skipped: each row is a whole target
        by itself, and the session has made sure that it is the same teacher. The deadline runs while the caller holds
        a row.

        Raises:
            CorruptStreamError: the stream is corrupt after rows were handed out; they cannot be taken back.
            DeadlineExceededError, TokbridgeError: as `score`.
        """
        async with aclosing(self._connected().scorer.stream(request)) as parts:
            async for rows in parts:
                yield rows

    @property
    def teacher(self) -> TeacherDescription:
        """The teacher as it last described itself."""
        return self._connected().session.standing.teacher

    @property
    def routing_statistics(self) -> Sequence[teacher_pb2.RoutingStatistics]:
        """How the teacher's tokens map to the student's, one entry a routing mode."""
        return self._connected().session.standing.registration.statistics

    @property
    def statistics(self) -> ClientStatistics:
        """A copy of the running totals."""
        return replace(self._statistics, retries=self._statistics.retries.copy())

    async def close(self) -> None:
        """End the connection; calls in progress end with `RequestCancelledError`. May be called again."""
        if self._connection is not None and not self._closed:
            self._closed = True
            await self._connection.session.close()
            await self._connection.channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self, student: StudentRegistration) -> _Connection:
        channel = open_channel(self._address, self._credentials)
        stub = teacher_pb2_grpc.TeacherStub(channel)
        session = Session(stub, student, self._expectation, self._metadata, self._statistics)
        new_attempts = partial(self._attempts, session, self._timeout_s)
        return _Connection(channel, session, Scorer(stub, student, self._metadata, self._statistics, new_attempts))

    def _attempts(self, session: Session, timeout_s: float) -> Attempts:
        state = RetryState(self._retry, deadline_s=self._clock() + timeout_s, random=self._random)
        return Attempts(session, state, self._statistics, self._clock, self._sleep)

    def _connected(self) -> _Connection:
        if self._connection is None or self._closed:
            raise RequestCancelledError("the client is not connected; call `connect` first, and nothing after `close`")
        return self._connection


@dataclass(frozen=True)
class _Connection:
    channel: grpc.aio.Channel
    session: Session
    scorer: Scorer


async def _first_standing(attempts: Attempts) -> Standing:
    while True:
        try:
            return await attempts.begin()
        except TokbridgeError as error:
            await attempts.recover(error)
