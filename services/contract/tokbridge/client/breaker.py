"""A circuit breaker for one replica: a pure state machine. Readings of the clock come from outside.

    CLOSED ── so many failures in a row, or `trip` ──▶ OPEN ── the pause is over ──▶ HALF_OPEN
       ▲                                                ▲                                │
       │                                                └─────────── failed ─────────────┤
       └──────────────────────────────── answered (on probation) ────────────────────────┘

After `answered` one more failure opens it again, with a longer pause; a finished call ends the probation. What happens
in a half-open breaker is the caller's affair: here, one handshake that no call has to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from tokbridge.errors import InvalidConfigError


class BreakerState(Enum):
    """Whether calls may go to the replica."""

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


@dataclass(frozen=True)
class BreakerPolicy:
    """When a replica is left alone, and for how long."""

    failures: int = 3
    """Failures in a row that open the breaker."""
    open_s: float = 1.0
    """First pause; each further one without a finished call in between is longer."""
    multiplier: float = 2.0
    max_open_s: float = 15.0

    def __post_init__(self) -> None:
        valid = {
            "failures": self.failures >= 1,
            "open_s": self.open_s > 0,
            "multiplier": self.multiplier >= 1,
            "max_open_s": self.max_open_s >= self.open_s,
        }
        for field, holds in valid.items():
            if not holds:
                raise InvalidConfigError(f"breaker: `{field}` is out of its range", field=field)

    def pause_s(self, openings: int) -> float:
        """The pause of the n-th opening in a row, counted from 1."""
        growth = min(openings - 1, 64)  # far past any cap, and no overflow
        return min(self.max_open_s, self.open_s * self.multiplier**growth)


class Breaker:
    """Closed at first."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._failures = 0
        self._open_until_s: float | None = None
        self.openings = 0
        """Openings since the last finished call."""

    @property
    def ready_at_s(self) -> float:
        """When the pause ends; −inf when there is none."""
        return float("-inf") if self._open_until_s is None else self._open_until_s

    def state(self, now_s: float) -> BreakerState:
        """The state at a reading of the clock."""
        if self._open_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self._open_until_s else BreakerState.HALF_OPEN

    def failed(self, now_s: float) -> bool:
        """A handshake or a call failed; returns whether this opened the breaker."""
        state = self.state(now_s)
        if state is BreakerState.OPEN:
            return False  # late news of what opened it
        self._failures += 1
        if state is BreakerState.CLOSED and self._failures < self._policy.failures:
            return False
        return self.trip(now_s)

    def trip(self, now_s: float) -> bool:
        """Open it whatever the count; returns whether it was not open yet."""
        if self.state(now_s) is BreakerState.OPEN:
            return False
        self.openings += 1
        self._open_until_s = now_s + self._policy.pause_s(self.openings)
        return True

    def answered(self) -> None:
        """The replica shook hands: closed, on probation if it was not."""
        if self._open_until_s is not None:
            self._open_until_s = None
            self._failures = self._policy.failures - 1

    def finished(self, now_s: float) -> None:
        """A call gave all its rows; counts only while closed, since it may have begun before the trouble."""
        if self.state(now_s) is BreakerState.CLOSED:
            self._failures = 0
            self.openings = 0
