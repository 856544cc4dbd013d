"""Which routing tables the workers hold, seen from the host: what is to be sent, what may be dropped.

Tables live in the workers for as long as the host keeps them (a student that is known, or a response under way).
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Iterable

from tokbridge_teacher.routing.device_tables import DeviceTables


class TableLedger:
    """Keys of tables and where they are. One thread; tables may be forgotten from any."""

    def __init__(self) -> None:
        self._keys: weakref.WeakKeyDictionary[DeviceTables, str] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._sent: set[str] = set()
        self._gone: deque[str] = deque()

    def key_of(self, tables: DeviceTables) -> str:
        """The name of tables, the same as long as they live."""
        if tables not in self._keys:
            key = f"tables-{next(self._numbers)}"
            self._keys[tables] = key
            weakref.finalize(tables, self._gone.append, key).atexit = False
        return self._keys[tables]

    def unsent(self, wanted: Iterable[DeviceTables]) -> dict[str, DeviceTables]:
        """Those of `wanted` that the workers do not hold; from now on they count as sent."""
        by_key = {self.key_of(tables): tables for tables in wanted}
        missing = {key: tables for key, tables in by_key.items() if key not in self._sent}
        self._sent.update(missing)
        return missing

    def unused(self) -> list[str]:
        """Keys that were sent and that nobody will ask for again, each given once."""
        keys: list[str] = []
        while self._gone:
            key = self._gone.popleft()
            if key in self._sent:
                self._sent.discard(key)
                keys.append(key)
        return keys

    def forget(self, tables: DeviceTables) -> None:
        """The workers turn out not to hold these."""
        self._sent.discard(self.key_of(tables))

    def forget_all(self) -> None:
        """The workers are new."""
        self._sent.clear()
