"""A queue that serves callers in proportion to their shares, by tokens: start-time fair queueing.

Every caller has a first-in-first-out line and a virtual time, which grows by `tokens / share` when work of that caller
is taken; the caller whose time is least comes first. A caller that comes back from idling starts at the present
virtual time, so idleness earns no credit. Work that is removed before its turn costs nothing. Pure: no clock, no lock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tokbridge_teacher.callers import Caller


class Queued(Protocol):
    """What can wait: compared by identity."""

    @property
    def caller(self) -> Caller:
        """Whose line it waits in."""
        ...

    @property
    def num_tokens(self) -> int:
        """What taking it costs."""
        ...


Item = TypeVar("Item", bound=Queued)


@dataclass
class _Line(Generic[Item]):
    """One caller's waiting work and its virtual time."""

    virtual_time: float
    items: list[Item] = field(default_factory=list)


class FairQueue(Generic[Item]):
    """Waiting work of several callers."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line[Item]] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return sum(len(line.items) for line in self._lines.values())

    def __iter__(self) -> Iterator[Item]:
        """All items, line by line."""
        for line in self._lines.values():
            yield from line.items

    def push(self, item: Item) -> None:
        """Put an item at the end of its caller's line."""
        line = self._lines.setdefault(item.caller.name, _Line(self._now))
        if not line.items:
            line.virtual_time = max(line.virtual_time, self._now)
        line.items.append(item)

    def in_order(self) -> Iterator[Item]:
        """All items, in the order in which taking them one by one would serve them."""
        heap = [(line.virtual_time, name, 0) for name, line in self._lines.items() if line.items]
        heapq.heapify(heap)
        while heap:
            virtual_time, name, index = heapq.heappop(heap)
            items = self._lines[name].items
            item = items[index]
            yield item
            if index + 1 < len(items):
                heapq.heappush(heap, (virtual_time + _charge(item), name, index + 1))

    def take(self, items: Iterable[Item]) -> None:
        """Remove waiting items and charge their callers."""
        for item in items:
            line = self._lines[item.caller.name]
            line.items.remove(item)
            self._now = max(self._now, line.virtual_time)
            line.virtual_time += _charge(item)
        self._forget()

    def remove(self, item: Item) -> bool:
        """Take an item out without a charge; False if it does not wait here."""
        line = self._lines.get(item.caller.name)
        if line is None or item not in line.items:
            return False
        line.items.remove(item)
        self._forget()
        return True

    def clear(self) -> None:
        """Drop everything that waits."""
        self._lines.clear()

    def _forget(self) -> None:
        """Drop idle lines without a debt; when nobody waits, debts are forgiven too."""
        waiting = any(line.items for line in self._lines.values())
        self._lines = {
            name: line
            for name, line in self._lines.items()
            if line.items or (waiting and line.virtual_time > self._now)
        }


def _charge(item: Queued) -> float:
    return item.num_tokens / item.caller.share
