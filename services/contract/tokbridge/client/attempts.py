"""The attempts of one call, with clock and sleep: runs the retry state machine over the replicas.

Every call may be made again, on any replica: to score is to compute a function of the request, and nothing of it stays
behind in the service. Errors that would recur are not retried; see `RetryState`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tokbridge.client.handshake import Standing
from tokbridge.client.replica import Replica
from tokbridge.client.replicas import Replicas
from tokbridge.client.retry import RetryState
from tokbridge.client.statistics import ClientStatistics
from tokbridge.errors import DeadlineExceededError, TokbridgeError, UnknownStudentError

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Attempt:
    """One try, on a replica where the client's student is registered."""

    replica: Replica
    standing: Standing
    timeout_s: float
    may_go_elsewhere: Callable[[], bool]
    """Whether another replica could be asked now."""


class Attempts:
    """One call's attempts; use `begin`, `recover` after each failure, and `finished` at the end."""

    def __init__(
        self,
        replicas: Replicas,
        key: bytes,
        state: RetryState,
        statistics: ClientStatistics,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        """Calls with one `key` go to one replica while they can."""
        self._replicas = replicas
        self._key = key
        self._state = state
        self._statistics = statistics
        self._clock = clock
        self._sleep = sleep
        self._replica: Replica | None = None
        """Where the next attempt goes, or the current one went."""
        self._standing: Standing | None = None
        self._failed: set[str] = set()
        """Replicas that failed since the last backoff."""

    @property
    def count(self) -> int:
        """Attempts begun."""
        return self._state.attempts

    @property
    def retries(self) -> dict[str, int]:
        """Failures that were followed by another attempt, by error code."""
        return dict(self._state.retries)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Attempt]:
        """An attempt on a replica that stands.

        Raises:
            DeadlineExceededError: no replica could be asked in time, or did not answer the handshake in time.
            TokbridgeError: what the handshake met.
        """
        self._state.begin()
        self._statistics.attempts += 1
        self._standing = None
        replica = await self._next_replica()
        with replica.call():
            try:
                self._standing = await replica.session.ready(self._remaining_s())
            except TimeoutError as timeout:
                if isinstance(timeout, TokbridgeError):
                    raise
                raise DeadlineExceededError(
                    "the deadline passed before the teacher had answered the handshake", replica=replica.name
                ) from timeout
            yield Attempt(
                replica, self._standing, self._remaining_s(), lambda: self._replicas.has_another(replica, self._failed)
            )

    async def recover(self, error: TokbridgeError) -> None:
        """Wait until the next attempt may begin.

        Raises:
            TokbridgeError: there will be none; see `RetryState.on_failure`.
        """
        before = self._replica
        if before is not None:
            error.details.setdefault("replica", before.name)
            if self._standing is not None:
                before.call_failed(error, self._standing)
            if not isinstance(error, UnknownStudentError):  # elsewhere the student may be unknown as well
                self._failed.add(before.name)
        if not self._state.may_retry(error):
            raise self._state.final(error)
        self._replica, wait_s = self._replicas.choose(self._key, self._failed)
        elsewhere = self._replica.name not in self._failed and bool(self._failed)
        delay_s = self._state.on_failure(error, self._clock(), wait_s=wait_s, elsewhere=elsewhere)
        if not elsewhere:
            self._failed.clear()
        self._statistics.retries[error.code.value] += 1
        if self._replica is not before:
            self._statistics.failovers[error.code.value] += 1
        await self._sleep(delay_s)

    def finished(self) -> None:
        """The last attempt gave all its rows."""
        if self._replica is not None:
            self._replica.call_finished()

    async def _next_replica(self) -> Replica:
        if self._replica is None or not self._replicas.holds(self._replica):
            self._replica, wait_s = self._replicas.choose(self._key)
            if wait_s >= self._remaining_s():
                raise DeadlineExceededError("no replica of the teacher can be asked before the deadline")
            if wait_s > 0:
                await self._sleep(wait_s)
        return self._replica

    def _remaining_s(self) -> float:
        return self._state.remaining_s(self._clock())
