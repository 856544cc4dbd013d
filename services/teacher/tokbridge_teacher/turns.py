"""Whose step is next when several passes are under way: the lane that has had the least time. Pure."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Lane(Enum):
    """At most one pass is under way in each; together they bound the keys and values held at once."""

    ORDINARY = "ordinary"
    """A batch of responses within `batch_tokens`."""
    LONG = "long"
    """One response above `batch_tokens`."""


class Turns:
    """Shares the model's time evenly between lanes that have work; a lane without any earns no credit."""

    def __init__(self) -> None:
        self._used_s = dict.fromkeys(Lane, 0.0)

    def next_of(self, lanes: Collection[Lane]) -> Lane:
        """The lane to advance, among those with a pass under way."""
        chosen = min(lanes, key=lambda lane: (self._used_s[lane], lane is Lane.LONG))
        for lane in Lane:
            if lane not in lanes:
                self._used_s[lane] = max(self._used_s[lane], self._used_s[chosen])
        return chosen

    def used(self, lane: Lane, seconds: float) -> None:
        """Account a step."""
        self._used_s[lane] += seconds
