"""When to try a failed call again: a pure state machine, one for each call. Clock and randomness come from outside.

    begin ── the attempt fails ──▶ on_failure ──┬──▶ seconds to wait, then begin again
                                                └──▶ raises: the error itself, or DeadlineExceededError

One deadline stands over all attempts and waits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random

from tokbridge.error_mapping import RETRY_AFTER_DETAIL
from tokbridge.errors import (
    CorruptStreamError,
    DeadlineExceededError,
    InvalidConfigError,
    TokbridgeError,
    UnknownStudentError,
)


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait between attempts, and when to stop beside the deadline."""

    initial_backoff_s: float = 0.25
    multiplier: float = 2.0
    max_backoff_s: float = 15.0
    jitter: float = 0.5
    """Share of each wait that is drawn at random, so that many callers do not come back together."""
    max_attempts: int | None = None
    """None: as many as the deadline allows."""
    max_repeats: int = 3
    """How often one call retries an error that waiting does not mend: a forgotten student, a corrupt stream."""

    def __post_init__(self) -> None:
        valid = {
            "initial_backoff_s": self.initial_backoff_s > 0,
            "multiplier": self.multiplier >= 1,
            "max_backoff_s": self.max_backoff_s >= self.initial_backoff_s,
            "jitter": 0 <= self.jitter <= 1,
            "max_attempts": self.max_attempts is None or self.max_attempts >= 1,
            "max_repeats": self.max_repeats >= 0,
        }
        for field, holds in valid.items():
            if not holds:
                raise InvalidConfigError(f"retry: `{field}` is out of its range", field=field)

    def backoff_s(self, failures: int) -> float:
        """Longest wait after `failures` failures in a row, at least one."""
        growth = min(failures - 1, 64)  # far past any cap, and no overflow
        return min(self.max_backoff_s, self.initial_backoff_s * self.multiplier**growth)


class RetryState:
    """The attempts of one call."""

    def __init__(self, policy: RetryPolicy, *, deadline_s: float, random: Random) -> None:
        """`deadline_s` is on the clock whose readings `on_failure` and `remaining_s` are given."""
        self._policy = policy
        self._deadline_s = deadline_s
        self._random = random
        self._backoffs = 0
        self.attempts = 0
        self.retries: Counter[str] = Counter()
        """Failures that were followed by another attempt, by error code."""
        self._last_retried: TokbridgeError | None = None

    def begin(self) -> None:
        """Count an attempt."""
        self.attempts += 1

    def remaining_s(self, now_s: float) -> float:
        """Time left until the deadline, at least 0."""
        return max(0.0, self._deadline_s - now_s)

    def on_failure(self, error: TokbridgeError, now_s: float, *, wait_s: float = 0.0, elsewhere: bool = False) -> float:
        """Seconds to wait after a failed attempt before the next one.

        Args:
            wait_s: until the replica of the next attempt may be asked at all.
            elsewhere: this call has not failed on that replica yet, so there is nothing to back off from.

        Raises:
            TokbridgeError: `error` itself, when trying again cannot help or may not be tried.
            DeadlineExceededError: the next attempt would come after the deadline; `error` is its cause.
        """
        if not self.may_retry(error):
            raise error
        delay_s = wait_s if elsewhere else max(wait_s, self._backoff_s(error))
        if now_s + delay_s >= self._deadline_s:
            raise self._past_deadline(error) from error
        self.retries[error.code.value] += 1
        self._last_retried = error
        return delay_s

    def final(self, error: TokbridgeError) -> TokbridgeError:
        """What the caller is told of an error that is not retried: of an attempt that the deadline cut short, what the
        attempts before it met.
        """
        if not isinstance(error, DeadlineExceededError) or self._last_retried is None:
            return error
        told = self._past_deadline(self._last_retried)
        told.__cause__ = self._last_retried
        return told

    def may_retry(self, error: TokbridgeError) -> bool:
        """Whether another attempt could help and is allowed; the deadline is not asked."""
        if self._policy.max_attempts is not None and self.attempts >= self._policy.max_attempts:
            return False
        if isinstance(error, UnknownStudentError | CorruptStreamError):
            return self.retries[error.code.value] < self._policy.max_repeats
        return error.retryable and retry_after_s(error) >= 0  # a service may push back with a negative wait

    def _past_deadline(self, last: TokbridgeError) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"the deadline passed after {self.attempts} attempts; the last one failed: {last.message}",
            attempts=self.attempts,
            last_error=last.code.value,
        )

    def _backoff_s(self, error: TokbridgeError) -> float:
        if isinstance(error, UnknownStudentError) and not self.retries[error.code.value]:
            return 0.0  # registering again is the remedy, not time
        self._backoffs += 1
        return self._policy.backoff_s(self._backoffs) * (1.0 - self._policy.jitter * self._random.random())


def retry_after_s(error: TokbridgeError) -> float:
    """The wait that a service asked for, in seconds: 0 without one, negative if it forbids another attempt."""
    value = error.details.get(RETRY_AFTER_DETAIL, 0.0)
    return 0.0 if isinstance(value, str) else float(value)
