"""A replica that takes calls and sends nothing, as one whose device hangs: noticed while another can still be asked.

A call alone cannot tell a silent replica from a busy one; all calls of a client together can. A call gives its replica
up only when it has waited for the next message for as long as the limit, no other call has heard from the replica
meanwhile either, and there is another one to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from tokbridge.errors import TeacherUnavailableError

_LOOKS = 10
"""So many looks in one limit, once it is over and nobody else can be asked."""


class SilentReplicaError(TeacherUnavailableError):
    """A replica sent nothing to anyone for too long. Details: `silent_s`."""


class Silence:
    """Since when a replica has sent nothing to this client; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._heard_at_s = float("-inf")

    def heard(self) -> None:
        """A message came, whichever call it was for."""
        self._heard_at_s = self.clock()

    def lasts_s(self, waits_since_s: float | None) -> float:
        """Seconds of silence for a call that waits since then; 0 for one that does not wait."""
        return 0.0 if waits_since_s is None else self.clock() - max(waits_since_s, self._heard_at_s)


class Listener(Protocol):
    """One stream of a replica."""

    @property
    def waits_since_s(self) -> float | None:
        """Since when it has waited for its next message; None: it does not, as when its reader is slow."""
        ...

    def give_up(self, error: SilentReplicaError) -> None:
        """End it with this error."""
        ...


@asynccontextmanager
async def given_up_when_silent(
    listener: Listener, silence: Silence, limit_s: float, may_go_elsewhere: Callable[[], bool]
) -> AsyncIterator[None]:
    """Watches over a stream while it is read."""
    watch = asyncio.create_task(_watch(listener, silence, limit_s, may_go_elsewhere))
    try:
        yield
    finally:
        watch.cancel()


async def _watch(listener: Listener, silence: Silence, limit_s: float, may_go_elsewhere: Callable[[], bool]) -> None:
    while (left_s := limit_s - silence.lasts_s(listener.waits_since_s)) > 0 or not may_go_elsewhere():
        await asyncio.sleep(max(left_s, limit_s / _LOOKS))
    listener.give_up(
        SilentReplicaError(f"the replica has sent nothing for {limit_s:g} s; another one is asked", silent_s=limit_s)
    )
