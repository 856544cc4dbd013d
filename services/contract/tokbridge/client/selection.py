"""Which replica gets a call: a pure choice. It knows no channel and no clock.

Calls with one key go to one replica while they can (rendezvous hashing), so that a service shares what the samples of
one prompt have in common, and only the keys of a replica that fails move. A replica that already has more than its
share of calls passes them on (consistent hashing with bounded loads).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

LOAD_FACTOR = 1.25
"""A replica may hold so many times its share of the calls in flight…"""
LOAD_SLACK = 8
"""…and so many more: the samples of one prompt stay together when little is going on."""


@dataclass(frozen=True)
class Candidate:
    """What the choice needs to know of a replica."""

    name: str
    in_flight: int
    ready_at_s: float
    """From when it may be asked: the end of its breaker's pause or of a wait that it asked for."""
    closed: bool
    """Its breaker; a half-open one is asked only where no closed one is left."""


@dataclass(frozen=True)
class Choice:
    """The replica to ask, and how long to wait before."""

    name: str
    wait_s: float


def choose(candidates: Sequence[Candidate], key: bytes, now_s: float, failed: Collection[str] = ()) -> Choice:
    """The best of at least one candidate for a call with this key.

    Args:
        failed: names of replicas on which this call has failed; they come last.
    """
    ready = [candidate for candidate in candidates if candidate.ready_at_s <= now_s]
    if not ready:
        first = min(candidates, key=lambda candidate: candidate.ready_at_s)
        return Choice(first.name, first.ready_at_s - now_s)
    best = min(_rank(candidate, failed) for candidate in ready)
    return Choice(_preferred([c for c in ready if _rank(c, failed) == best], key), 0.0)


def _rank(candidate: Candidate, failed: Collection[str]) -> tuple[bool, bool]:
    return candidate.name in failed, not candidate.closed


def _preferred(candidates: Sequence[Candidate], key: bytes) -> str:
    share = (sum(candidate.in_flight for candidate in candidates) + 1) / len(candidates)
    limit = math.ceil(LOAD_FACTOR * share) + LOAD_SLACK
    free = [candidate for candidate in candidates if candidate.in_flight < limit]  # never empty: the mean is below it
    return max(free, key=lambda candidate: _score(candidate.name, key)).name


def _score(name: str, key: bytes) -> bytes:
    return hashlib.blake2b(name.encode(), key=key[: hashlib.blake2b.MAX_KEY_SIZE], digest_size=8).digest()
