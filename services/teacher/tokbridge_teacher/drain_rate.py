"""How fast a service gets through what it has admitted: a decaying average of tokens a second over busy time.

Pure; the clock's readings come from outside.
"""

from __future__ import annotations

import math


class DrainRate:
    """Tokens that left over the seconds in which there was something to do."""

    def __init__(self, memory_s: float = 30.0) -> None:
        """`memory_s`: what happened that many seconds ago weighs 1/e."""
        self._memory_s = memory_s
        self._tokens = 0.0
        self._seconds = 0.0
        self._last_s: float | None = None

    def observe(self, now_s: float, *, busy: bool, tokens_left: int) -> None:
        """Note an event: whether there was work since the one before, and the tokens that leave now."""
        elapsed_s = 0.0 if self._last_s is None else max(0.0, now_s - self._last_s)
        self._last_s = now_s
        if busy:
            kept = math.exp(-elapsed_s / self._memory_s)
            self._tokens *= kept
            self._seconds = self._seconds * kept + elapsed_s
        self._tokens += tokens_left

    def seconds_for(self, tokens: float) -> float | None:
        """Time in which that many tokens leave; None while nothing has been measured."""
        if self._tokens <= 0 or self._seconds <= 0:
            return None
        return tokens * self._seconds / self._tokens
