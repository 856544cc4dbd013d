"""What a service holds at once: requests, teacher tokens, bytes of results, each bounded in all and by caller.

A lease stands for one request from its arrival until its last row was taken: while it is prepared, waits, runs, and
while its caller reads slowly. All sums are computed from the leases themselves, so they cannot drift. A caller may hold
its share among the callers that hold something, less a place kept for one that is still to come; where nobody has to
say who calls, the one anonymous caller may hold everything. Knows no request, no protocol and no model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from tokbridge.error_mapping import RETRY_AFTER_DETAIL
from tokbridge.errors import LimitExceededError, OverloadedError
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.drain_rate import DrainRate

_SHORTEST_RETRY_S = 0.05
_LIMIT_NAMES = {"requests": "max_requests", "tokens": "max_tokens_in_flight", "result_bytes": "max_result_bytes"}


@dataclass(frozen=True)
class Cost:
    """What one request takes."""

    requests: int = 1
    tokens: int = 0
    """Teacher tokens of prompt and content; an estimate until the request is prepared."""
    result_bytes: int = 0
    """Most bytes of rows that can wait in memory for their caller."""


NOTHING = Cost(requests=0)


@dataclass(frozen=True)
class AdmissionLimits:
    """What is held at most."""

    total: Cost
    newcomer_share: float = 0.25
    """Weight that is kept free for a caller who holds nothing yet, in mean shares of those who hold something."""
    default_retry_s: float = 1.0
    """What a refused caller is told to wait before anything has been measured."""
    longest_retry_s: float = 60.0


@dataclass(eq=False)
class Lease:
    """One admitted request, by identity; give it back with `Admission.release`."""

    caller: Caller
    cost: Cost


class Admission:
    """Grants leases; safe from any thread."""

    def __init__(self, limits: AdmissionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: set[Lease] = set()
        self._rate = DrainRate()

    def admit(self, caller: Caller, cost: Cost) -> Lease:
        """A lease for a request of this cost.

        Raises:
            LimitExceededError: it could never be admitted.
            OverloadedError: not now; details say when to come back.
        """
        lease = Lease(caller, NOTHING)
        self.settle(lease, cost)
        return lease

    def settle(self, lease: Lease, cost: Cost) -> None:
        """Put what a request really costs in place of what it was admitted with; the lease is kept as it was if that
        is refused.

        Raises:
            LimitExceededError, OverloadedError: as `admit`.
        """
        with self._lock:
            others = [other for other in self._leases if other is not lease]
            self._check(lease.caller, cost, others)
            self._observe(0)
            lease.cost = cost
            self._leases.add(lease)

    def release(self, lease: Lease) -> None:
        """Give a lease back; again is nothing."""
        with self._lock:
            if lease in self._leases:
                self._observe(lease.cost.tokens)
                self._leases.remove(lease)

    def held(self) -> Cost:
        """What is held at this moment."""
        with self._lock:
            return _sum(self._leases)

    def _observe(self, tokens_left: int) -> None:
        self._rate.observe(self._clock(), busy=bool(self._leases), tokens_left=tokens_left)

    def _check(self, caller: Caller, cost: Cost, others: list[Lease]) -> None:
        total, held = self._limits.total, _sum(others)
        own = _sum(lease for lease in others if lease.caller.name == caller.name)
        part = self._part(caller, others)
        for name in (field.name for field in fields(Cost)):
            wanted, limit = getattr(cost, name), getattr(total, name)
            if wanted > limit:
                raise LimitExceededError(
                    f"A response with {wanted} {name} and its prompt is more than the service holds at once.",
                    name=_LIMIT_NAMES[name],
                    value=wanted,
                    limit=limit,
                )
            if getattr(held, name) + wanted > limit:
                raise self._overloaded(name, held, getattr(held, name) + wanted - limit, 1.0)
            if own.requests and getattr(own, name) + wanted > limit * part:
                raise self._overloaded(name, own, getattr(own, name) + wanted - limit * part, part)

    def _part(self, caller: Caller, others: Iterable[Lease]) -> float:
        """The part of every limit that is this caller's."""
        if caller.name == ANONYMOUS.name:
            return 1.0
        shares = {lease.caller.name: lease.caller.share for lease in others} | {caller.name: caller.share}
        return caller.share / (sum(shares.values()) * (1 + self._limits.newcomer_share / len(shares)))

    def _overloaded(self, name: str, held: Cost, excess: float, part: float) -> OverloadedError:
        """Say when as much of `held` as is too much will have left, at the measured rate times `part`."""
        tokens = held.tokens * min(1.0, excess / max(1, getattr(held, name)))
        seconds = self._rate.seconds_for(tokens / part)
        wait_s = self._limits.default_retry_s if seconds is None else seconds
        whose = "The service" if part == 1.0 else "Your part of the service"
        return OverloadedError(
            f"{whose} is full: {held.requests} requests with {held.tokens} tokens are under way; try again.",
            name=_LIMIT_NAMES[name],
            **{RETRY_AFTER_DETAIL: round(min(max(wait_s, _SHORTEST_RETRY_S), self._limits.longest_retry_s), 3)},
        )


def _sum(leases: Iterable[Lease]) -> Cost:
    costs = [lease.cost for lease in leases]
    return Cost(
        requests=sum(cost.requests for cost in costs),
        tokens=sum(cost.tokens for cost in costs),
        result_bytes=sum(cost.result_bytes for cost in costs),
    )
