"""A small thread-safe cache that forgets what was used longest ago, bounded by the weight of its values.

Standard `lru_cache` bounds the number of values; ours differ in size by five orders of magnitude.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Least-recently-used values whose total weight stays at `max_weight` or below."""

    def __init__(self, max_weight: int, weigh: Callable[[V], int]) -> None:
        self._max_weight = max_weight
        self._weigh = weigh
        self._values: OrderedDict[K, V] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get_or_build(self, key: K, build: Callable[[], V]) -> V:
        """The value under `key`, built outside the lock if it is not there (two threads may both build it)."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = build()
        with self._lock:
            self._insert(key, value)
        return value

    def _insert(self, key: K, value: V) -> None:
        if key in self._values:
            return
        self._values[key] = value
        self._weight += self._weigh(value)
        while self._weight > self._max_weight and len(self._values) > 1:
            _, dropped = self._values.popitem(last=False)
            self._weight -= self._weigh(dropped)
