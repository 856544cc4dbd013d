"""A learner and rollout workers that are one group for broadcasts; a meeting point stands for NCCL.

It lets nobody go before all have come.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

import ray

from support.slow_stages import SlowLearner, SlowWorker, Span

Occasion = str | int
"""A group that forms, by its size, or a policy version that is sent."""


class Meeting:
    """Where the parties wait for one another, by rank. Takes the place of the stages' journal."""

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._present: defaultdict[Occasion, set[int]] = defaultdict(set)
        self._changed = asyncio.Condition()

    async def arrive(self, occasion: Occasion, rank: int) -> None:
        """Wait until all are there."""
        async with self._changed:
            self._present[occasion].add(rank)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: len(self._present[occasion]) == self._parties)

    async def note(self, span: Span) -> None:
        """Times do not matter here."""

    async def seen(self) -> dict[Occasion, set[int]]:
        """Who came to what."""
        return dict(self._present)


class MeetingLearner(SlowLearner):
    """Rank 0 of the group."""

    def open_rendezvous(self, world_size: int) -> int:
        """The size stands for the address."""
        return world_size

    def join_broadcasts(self, rendezvous: int) -> None:
        """Wait for the workers."""
        ray.get(self._journal.arrive.remote(f"join {rendezvous}", 0))

    def broadcast_weights(self) -> None:
        """Wait until all are there to take the present version."""
        ray.get(self._journal.arrive.remote(self._version, 0))


class MeetingWorker(SlowWorker):
    """An engine of the group."""

    def join_broadcasts(self, rendezvous: int, rank: int) -> None:
        """Wait for learner and workers."""
        self._rank = rank
        ray.get(self._journal.arrive.remote(f"join {rendezvous}", rank))

    def set_weights(self, version: int) -> None:
        """Take a version, together with all others."""
        ray.get(self._journal.arrive.remote(version, self._rank))
        super().set_weights(version)


class MortalWorker(MeetingWorker):
    """The first one dies before it takes version 1."""

    def set_weights(self, version: int) -> None:
        """Die or take a version."""
        if version == 1 and self._rank == 1:
            os._exit(1)
        super().set_weights(version)
