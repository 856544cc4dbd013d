"""The replicas of one teacher: opened, found again when names change, chosen, closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass

from tokbridge.client.breaker import Breaker, BreakerPolicy
from tokbridge.client.channel import open_channel
from tokbridge.client.credentials import ClientCredentials
from tokbridge.client.handshake import Demands, Standing
from tokbridge.client.replica import Replica
from tokbridge.client.resolution import Endpoint, Resolve, endpoints_of
from tokbridge.client.selection import choose
from tokbridge.client.target import Target
from tokbridge.errors import RequestCancelledError, TeacherUnavailableError

RESOLVE_EVERY_S = 30.0
"""Names are looked up again as calls come, no more often than this…"""
RESOLVE_SOON_S = 2.0
"""…or than this while a replica is in trouble: its host may have another address by now."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """What the replicas are reached with."""

    credentials: ClientCredentials
    breaker: BreakerPolicy
    resolve: Resolve
    clock: Callable[[], float]


class Replicas:
    """All replicas behind a client's targets."""

    def __init__(self, targets: Sequence[Target], demands: Demands, surroundings: Surroundings) -> None:
        self._targets = targets
        self._demands = demands
        self._surroundings = surroundings
        self._replicas: dict[Endpoint, Replica] = {}
        self._resolved_at_s = float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def standing(self) -> Standing:
        """A standing of one replica, which may be broken by now.

        Raises:
            TeacherUnavailableError: there has been none.
        """
        standings = [replica.session.last_standing for replica in self._replicas.values()]
        found = next((standing for standing in standings if standing is not None), None)
        if found is None:
            raise TeacherUnavailableError("the client has not reached its teacher yet")
        return found

    async def connect(self, timeout_s: float) -> Standing:
        """Shake hands with all replicas; those that do not answer are left for later if others do.

        Raises:
            TimeoutError: none stood within `timeout_s`.
            RequestCancelledError: the client was closed meanwhile.
            TokbridgeError: one refused, or is not a replica of the others, or none answers.
        """
        self._check_open()
        await self.resolve()
        self._check_open()
        replicas = [*self._replicas.values()]
        handshakes = (replica.session.ready(timeout_s) for replica in replicas)
        outcomes = await asyncio.gather(*handshakes, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not (isinstance(failure, TimeoutError) or getattr(failure, "retryable", False)):
                raise failure
        standings = [outcome for outcome in outcomes if isinstance(outcome, Standing)]
        if not standings:
            raise failures[0]
        for replica, outcome in zip(replicas, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _log.warning("going on without the teacher at %s for now: %s", replica.name, outcome or "no answer")
        return standings[0]

    def choose(self, key: bytes, failed: Collection[str] = ()) -> tuple[Replica, float]:
        """The replica for a call, and how many seconds to wait before.

        Raises:
            RequestCancelledError: the client is closed.
            TeacherUnavailableError: `connect` has found none yet.
            TokbridgeError: a replica refuses us, or turned out not to be a replica of the others.
        """
        self._check_open()
        if not self._replicas:
            raise TeacherUnavailableError("the client has not reached its teacher yet")
        for replica in self._replicas.values():
            replica.try_again()
            if replica.fault is not None:
                raise replica.fault
        now_s = self._surroundings.clock()
        replicas = {replica.name: replica for replica in self._replicas.values()}
        candidates = [replica.candidate(now_s) for replica in replicas.values()]
        self._resolve_if_due(now_s, in_trouble=not all(candidate.closed for candidate in candidates))
        choice = choose(candidates, key, now_s, failed)
        return replicas[choice.name], choice.wait_s

    def has_another(self, replica: Replica, failed: Collection[str]) -> bool:
        """Whether a call could go to another replica now, one that it has not failed on."""
        now_s = self._surroundings.clock()
        others = (other.candidate(now_s) for other in self._replicas.values() if other is not replica)
        return any(other.closed and other.ready_at_s <= now_s and other.name not in failed for other in others)

    def holds(self, replica: Replica) -> bool:
        """Whether its address is still one of the teacher's."""
        return self._replicas.get(replica.endpoint) is replica

    async def resolve(self) -> None:
        """Look up all names; addresses that are new become replicas, those that are gone take no more calls.

        A name that does not resolve keeps what it had.

        Raises:
            TeacherUnavailableError: no name resolves, and none did before.
        """
        self._resolved_at_s = self._surroundings.clock()
        lookups = (endpoints_of(target, self._surroundings.resolve) for target in self._targets)
        found = await asyncio.gather(*lookups, return_exceptions=True)
        endpoints: list[Endpoint] = []
        for target, outcome in zip(self._targets, found, strict=True):
            if isinstance(outcome, list):
                endpoints += outcome
            elif isinstance(outcome, TeacherUnavailableError) and self._replicas:
                _log.warning("%s", outcome.message)
                endpoints += [endpoint for endpoint in self._replicas if endpoint.target is target]
            elif not isinstance(outcome, TeacherUnavailableError):
                raise outcome
        if not endpoints:
            raise next(outcome for outcome in found if isinstance(outcome, BaseException))
        self._keep(endpoints)

    async def close(self) -> None:
        """Close all channels; calls in progress end."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(replica.close() for replica in self._replicas.values()))

    def _check_open(self) -> None:
        if self._closed:
            raise RequestCancelledError("the client was closed during the call")

    def _resolve_if_due(self, now_s: float, *, in_trouble: bool) -> None:
        if now_s - self._resolved_at_s >= (RESOLVE_SOON_S if in_trouble else RESOLVE_EVERY_S):
            self._resolved_at_s = now_s
            self._in_background(self.resolve())

    def _keep(self, endpoints: Sequence[Endpoint]) -> None:
        for endpoint in self._replicas.keys() - set(endpoints):
            self._in_background(self._replicas.pop(endpoint).close_when_idle())
        for endpoint in endpoints:
            if not self._closed and endpoint not in self._replicas:
                self._replicas[endpoint] = self._open(endpoint)

    def _open(self, endpoint: Endpoint) -> Replica:
        around = self._surroundings
        encrypted = around.credentials.encrypts(endpoint.target)
        channel = open_channel(endpoint, around.credentials.for_channel() if encrypted else None)
        return Replica(endpoint, channel, self._demands, Breaker(around.breaker), around.clock)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
