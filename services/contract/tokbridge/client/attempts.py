"""The attempts of one call, with clock and sleep: runs the retry state machine on a session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tokbridge.client.retry import RetryState
from tokbridge.client.session import Session, Standing
from tokbridge.client.statistics import ClientStatistics
from tokbridge.errors import (
    DeadlineExceededError,
    ShuttingDownError,
    TeacherUnavailableError,
    TokbridgeError,
    UnknownStudentError,
)

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

_BREAKS_SESSION = (UnknownStudentError, TeacherUnavailableError, ShuttingDownError)


class Attempts:
    """One call's attempts; use `begin`, and `recover` after each failure."""

    def __init__(
        self, session: Session, state: RetryState, statistics: ClientStatistics, clock: Clock, sleep: Sleep
    ) -> None:
        self._session = session
        self._state = state
        self._statistics = statistics
        self._clock = clock
        self._sleep = sleep
        self._standing: Standing | None = None

    @property
    def count(self) -> int:
        """Attempts begun."""
        return self._state.attempts

    @property
    def retries(self) -> dict[str, int]:
        """Failures that were followed by another attempt, by error code."""
        return dict(self._state.retries)

    @property
    def remaining_s(self) -> float:
        """Time left until the deadline."""
        return self._state.remaining_s(self._clock())

    async def begin(self) -> Standing:
        """Start an attempt on a session that stands.

        Raises:
            DeadlineExceededError: the session did not come about in time.
            TokbridgeError: what making it met.
        """
        self._state.begin()
        self._statistics.attempts += 1
        self._standing = None
        try:
            self._standing = await self._session.ready(self.remaining_s)
        except TimeoutError as timeout:
            raise DeadlineExceededError(
                "the deadline passed before the teacher had answered the handshake"
            ) from timeout
        return self._standing

    async def recover(self, error: TokbridgeError) -> None:
        """Wait until the next attempt may begin.

        Raises:
            TokbridgeError: there will be none; see `RetryState.on_failure`.
        """
        if self._standing is not None and isinstance(error, _BREAKS_SESSION):
            self._session.broken(self._standing, forgotten=isinstance(error, UnknownStudentError))
        delay_s = self._state.on_failure(error, self._clock())
        self._statistics.retries[error.code.value] += 1
        await self._sleep(delay_s)
