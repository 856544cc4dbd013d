"""The asynchronous client of a teacher service.

    async with TeacherClient("teacher:50051") as client:
        await client.connect(StudentRegistration.from_profile(load_tokenizer(path)))
        result = await client.score(request)

It shakes hands, registers its student by itself, again when the service has forgotten it, and retries what is safe
under one deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random
from typing import Self

from tokbridge.client.agreement import DEFAULT_MAX_DIVERGENCE, Agreement
from tokbridge.client.attempts import Attempts, Clock, Sleep
from tokbridge.client.breaker import BreakerPolicy
from tokbridge.client.call_metadata import CallMetadata, Metadata
from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.expectation import TeacherExpectation
from tokbridge.client.handshake import Demands, Standing
from tokbridge.client.replicas import Replicas, Surroundings
from tokbridge.client.resolution import Resolve, system_addresses
from tokbridge.client.retry import RetryPolicy, RetryState, retry_after_s
from tokbridge.client.scoring import Scorer
from tokbridge.client.statistics import ClientStatistics
from tokbridge.client.target import Target, parse_targets
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
from tokbridge.v1 import teacher_pb2

_log = logging.getLogger(__name__)


class TeacherClient:
    """One student's connection to one teacher. Any number of calls may run at once, in one event loop."""

    def __init__(
        self,
        targets: str | Sequence[str],
        *,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 60.0,
        max_silence_s: float | None = None,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
        expectation: TeacherExpectation | None = None,
        max_divergence: float | None = DEFAULT_MAX_DIVERGENCE,
        credentials: ClientCredentials | None = None,
        metadata: Metadata = (),
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        random: Random | None = None,
        resolve: Resolve = system_addresses,
    ) -> None:
        """Nothing is sent yet.

        Args:
            targets: gRPC ports of one or more replicas of one teacher: `host:port`, `grpc://host:port` (plain) or
                `grpcs://host:port` (TLS). Each address of a name is a replica.
            timeout_s: deadline of one call, over all its attempts and waits and all replicas.
            connect_timeout_s: the same for `connect`.
            max_silence_s: a replica that has sent nothing to any call for so long is given up while another can be
                asked; None: a third of `timeout_s`.
            retry: backoff and its limits.
            breaker: when a replica is left alone, and for how long.
            expectation: the teacher that is meant; any, if left out.
            max_divergence: how far the rows of two replicas may be apart on one small response, in nats; None: they
                are not compared.
            credentials: API key and certificates.
            metadata: sent with every call.
            clock: seconds that only grow.
            sleep: waits for so many seconds.
            random: source of the jitter.
            resolve: from names to addresses.

        Raises:
            InvalidConfigError: a target, the credentials or a timeout is wrong.
        """
        if max_silence_s is None:
            max_silence_s = timeout_s / 3
        if not (timeout_s > 0 and connect_timeout_s > 0 and max_silence_s > 0):
            raise InvalidConfigError("timeouts must be above 0", field="timeout_s")
        self._targets = parse_targets(targets)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._max_silence_s = max_silence_s
        self._retry = retry or RetryPolicy()
        self._expectation = expectation or TeacherExpectation()
        self._agreement = Agreement(max_divergence)
        self._credentials = credentials or ClientCredentials()
        self._metadata = CallMetadata((*metadata, *self._credentials.metadata))
        self._clock = clock
        self._sleep = sleep
        self._random = random or Random()
        self._surroundings = Surroundings(self._credentials, breaker or BreakerPolicy(), resolve, clock)
        self._connection: _Connection | None = None
        self._statistics = ClientStatistics()
        self._closing = asyncio.Event()
        _warn_of_exposure(self._credentials, self._targets)

    async def connect(self, student: StudentRegistration) -> TeacherDescription:
        """Shake hands with all replicas, check them, register `student`; waits for a teacher that is still starting.

        Replicas that do not answer are left for later as long as one does.

        Raises:
            TeacherUnavailableError: none answered within `connect_timeout_s`.
            TeacherMismatchError, UnsupportedModeError: not the teacher that is meant, or the replicas disagree.
            LimitExceededError: the student's vocabulary is larger than the teacher allows.
            InvalidConfigError: already connected, or about to be; after an error it may be called again.
            RequestCancelledError: the client is closed.
        """
        if self._closing.is_set():
            raise RequestCancelledError("the client is closed")
        if self._connection is not None:
            raise InvalidConfigError("this client is already connected; use one client a student", field="student")
        self._connection = self._open(student)
        try:
            return (await self._first_standing(self._connection.replicas)).teacher
        except BaseException as error:
            await self._connection.replicas.close()
            self._connection = None
            if isinstance(error, DeadlineExceededError) and isinstance(error.__cause__, TeacherUnavailableError):
                addresses = ", ".join(target.address for target in self._targets)
                raise TeacherUnavailableError(
                    f"no teacher answers at {addresses}: {error.__cause__.message}",
                    address=addresses,
                    **error.__cause__.details,
                ) from error
            raise

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score one response; the rows of the result all come from one attempt whose checksum was right.

        Raises:
            DeadlineExceededError: not within `timeout_s`; its cause is the last failure, if there was one.
            TokbridgeError: what the teacher reported, once trying again could not help. As with every error of the
                client, its details hold the `request_id` under which the service has logged the call.
        """
        return await self._connected().scorer.score(request)

    async def stream(self, request: ScoreRequest) -> AsyncGenerator[TargetRows, None]:
        """Rows of one response as the teacher releases them, each once, in order; close the iterator to cancel.

        After a failure the response is scored again and rows already handed out are skipped: each row is a whole target
        by itself, and the handshake has made sure that all replicas are the same teacher. The deadline runs while the
        caller holds a row.

        Raises:
            CorruptStreamError: the stream is corrupt after rows were handed out; they cannot be taken back.
            DeadlineExceededError, TokbridgeError: as `score`.
        """
        async with aclosing(self._connected().scorer.stream(request)) as parts:
            async for rows in parts:
                yield rows

    @property
    def targets(self) -> tuple[Target, ...]:
        """Where the client was told to go."""
        return self._targets

    @property
    def teacher(self) -> TeacherDescription:
        """The teacher as it last described itself."""
        return self._connected().replicas.standing.teacher

    @property
    def routing_statistics(self) -> Sequence[teacher_pb2.RoutingStatistics]:
        """How the teacher's tokens map to the student's, one entry a routing mode."""
        return self._connected().replicas.standing.registration.statistics

    @property
    def statistics(self) -> ClientStatistics:
        """A copy of the running totals."""
        return self._statistics.copy()

    async def close(self) -> None:
        """End the connection; calls in progress end with `RequestCancelledError`. May be called again."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._connection is not None:
            await self._connection.replicas.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open(self, student: StudentRegistration) -> _Connection:
        demands = Demands(student, self._expectation, self._agreement, self._metadata, self._statistics)
        replicas = Replicas(self._targets, demands, self._surroundings)

        def new_attempts(key: bytes) -> Attempts:
            state = self._retry_state(self._timeout_s)
            return Attempts(replicas, key, state, self._statistics, self._clock, self._pause)

        return _Connection(replicas, Scorer(demands, new_attempts, self._max_silence_s))

    def _retry_state(self, timeout_s: float) -> RetryState:
        return RetryState(self._retry, deadline_s=self._clock() + timeout_s, random=self._random)

    async def _first_standing(self, replicas: Replicas) -> Standing:
        state = self._retry_state(self._connect_timeout_s)
        last: Exception | None = None
        while True:
            state.begin()
            self._statistics.attempts += 1
            try:
                return await replicas.connect(state.remaining_s(self._clock()))
            except TokbridgeError as error:
                last = error
                delay_s = state.on_failure(error, self._clock(), wait_s=retry_after_s(error))
                self._statistics.retries[error.code.value] += 1
                await self._pause(delay_s)
            except TimeoutError as timeout:
                raise DeadlineExceededError("the deadline passed before a teacher had answered") from last or timeout

    async def _pause(self, seconds: float) -> None:
        """Sleep, no longer than until the client is closed: a call that waits for its next attempt ends then, too."""
        sleeping, closing = asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((sleeping, closing), return_when=asyncio.FIRST_COMPLETED)
            if sleeping.done():
                sleeping.result()
        finally:
            sleeping.cancel()
            closing.cancel()

    def _connected(self) -> _Connection:
        if self._connection is None or self._closing.is_set():
            raise RequestCancelledError("the client is not connected; call `connect` first, and nothing after `close`")
        return self._connection


def _warn_of_exposure(credentials: ClientCredentials, targets: Sequence[Target]) -> None:
    for address in credentials.exposed(targets):
        _log.warning(
            "THE API KEY GOES TO %s WITHOUT ENCRYPTION: who sees the traffic can use it; give the teacher a "
            "certificate and write grpcs://",
            address,
        )


@dataclass(frozen=True)
class _Connection:
    replicas: Replicas
    scorer: Scorer
