"""The processes that share one learner. One process needs no process group, and none is touched then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Which of the learner's processes this is; by default the only one.

    With more than one, torch's default process group connects them, and every rank makes the same calls in the same
    order.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that speaks for all."""
        return self.rank == 0

    def all_gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order, on every rank. They are pickled: numbers and arrays, no models."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def side_group(self) -> dist.ProcessGroup | None:
        """A group on the CPU for what a thread does beside training, so that its collectives do not mix with others.

        Every rank must call. None: there is one rank only.
        """
        if self.size == 1:
            return None
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup), "every rank is a member"
        return group


ONE_RANK = Ranks()
"""A learner of one process."""
