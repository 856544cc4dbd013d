"""One replica of a teacher as a client sees it: its channel and session, its breaker, the calls it has in flight."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc.aio

from tokbridge.client.breaker import Breaker, BreakerState
from tokbridge.client.handshake import Demands, Handshake, Standing
from tokbridge.client.resolution import Endpoint
from tokbridge.client.retry import retry_after_s
from tokbridge.client.selection import Candidate
from tokbridge.client.session import Session
from tokbridge.client.silence import Silence, SilentReplicaError
from tokbridge.errors import (
    CorruptStreamError,
    ShuttingDownError,
    TeacherUnavailableError,
    TokbridgeError,
    UnknownStudentError,
)
from tokbridge.v1 import teacher_pb2_grpc

_FAILURES = (TeacherUnavailableError, ShuttingDownError, CorruptStreamError)
"""What speaks against a replica; anything else speaks against the request, or for waiting."""

_log = logging.getLogger(__name__)


class Replica:
    """Shares the client's event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.aio.Channel,
        demands: Demands,
        breaker: Breaker,
        clock: Callable[[], float],
    ) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.stub = teacher_pb2_grpc.TeacherStub(channel)
        self.silence = Silence(clock)
        self.session = Session(Handshake(endpoint.name, self.stub, demands, self.silence), self._handshake_ended)
        self.fault: TokbridgeError | None = None
        """Why its last handshake failed, if trying again would not have helped."""
        self._statistics = demands.statistics
        self._breaker = breaker
        self._clock = clock
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._pushed_back_until_s = float("-inf")

    @property
    def name(self) -> str:
        """Its address, for people."""
        return self.endpoint.name

    @contextmanager
    def call(self) -> Iterator[None]:
        """Counts a call in flight."""
        self._in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def candidate(self, now_s: float) -> Candidate:
        """What the choice of a replica needs to know."""
        return Candidate(
            name=self.name,
            in_flight=self._in_flight,
            ready_at_s=max(self._breaker.ready_at_s, self._pushed_back_until_s),
            closed=self._breaker.state(now_s) is BreakerState.CLOSED,
        )

    def try_again(self) -> None:
        """If its pause is over, begin the handshake that shows whether it is back; no call has to wait for it."""
        if self._breaker.state(self._clock()) is BreakerState.HALF_OPEN:
            self.session.start()

    def call_failed(self, error: TokbridgeError, standing: Standing) -> None:
        """A call on `standing` failed; failures of many calls on one standing count once."""
        self._push_back(error)
        if isinstance(error, UnknownStudentError):
            self.session.broken(standing, forgotten=True)
        elif isinstance(error, SilentReplicaError):
            if self.session.broken(standing, silent=True):
                self._note(self._breaker.trip(self._clock()), error)
        elif isinstance(error, _FAILURES) and self.session.broken(standing):
            self._note(self._breaker.failed(self._clock()), error)

    def call_finished(self) -> None:
        """A call gave all its rows."""
        self._breaker.finished(self._clock())

    async def close(self) -> None:
        """End the session and the channel, and with it all calls."""
        await self.session.close()
        await self.channel.close()

    async def close_when_idle(self) -> None:
        """The same once no call is in flight; each has its own deadline."""
        try:
            await self._idle.wait()
        finally:
            await self.close()

    def _handshake_ended(self, error: TokbridgeError | None) -> None:
        self.fault = None if error is None or error.retryable else error
        if error is None:
            self._breaker.answered()
            return
        self._push_back(error)
        if isinstance(error, _FAILURES):
            self._note(self._breaker.failed(self._clock()), error)
        elif not error.retryable:
            self._note(self._breaker.trip(self._clock()), error)

    def _push_back(self, error: TokbridgeError) -> None:
        """Keep the wait that a service asked for; it speaks for the replica, whoever is told."""
        self._pushed_back_until_s = max(self._pushed_back_until_s, self._clock() + retry_after_s(error))

    def _note(self, opened: bool, error: TokbridgeError) -> None:
        if opened:
            self._statistics.breaker_openings[self.name] += 1
            _log.warning("the teacher at %s is left alone for a while: %s", self.name, error.message)
