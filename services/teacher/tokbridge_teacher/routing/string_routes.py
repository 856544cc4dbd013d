"""The pair map of `lookahead`: byte string → φ, and whether what follows could still change it (spec §5b).

Cached across requests. Unknown strings are encoded in one batch; a known one costs a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from tokbridge.modes import Routing
from tokbridge_teacher.routing.bounded_cache import BoundedCache
from tokbridge_teacher.routing.byte_order import ByteOrder
from tokbridge_teacher.routing.router import UNMAPPED, Router

MAX_STRINGS = 2_000_000
"""Strings kept: some 250 MB."""
MAX_EXTENSIONS = 64
"""Student tokens beginning with a string whose masses are asked for whatever their rank. The plan asks for those along
the realized bytes besides; any other that a move creates counts with a base mass of 0 if it is not among the row's top
cells either, so it is short by at most the mass of the last of those, which stays in the truncated residual."""
MAX_REACHABLE_ENTRIES = 4_000_000


class StringRoutes:
    """φ of strings of teacher tokens; safe from several threads."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._student_order = ByteOrder(router.student)
        self._known: dict[bytes, int] = {}
        self._reachable: BoundedCache[bytes, NDArray[np.int32]] = BoundedCache(MAX_REACHABLE_ENTRIES, _weigh)
        self._lock = Lock()

    def look_up(self, strings: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """φ of each string (`UNMAPPED`: none) and whether it is settled: [len(strings)] each."""
        with self._lock:
            if len(self._known) > MAX_STRINGS:
                self._known.clear()
            known = self._known
            unknown = list({string for string in strings if string not in known})
            if unknown:
                known.update(zip(unknown, self._resolve(unknown), strict=True))
            packed = np.fromiter((known[string] for string in strings), np.int64, len(strings))
        return ((packed >> 1) + UNMAPPED).astype(np.int32), (packed & 1).astype(bool)

    def _resolve(self, strings: Sequence[bytes]) -> list[int]:
        """φ and settledness of each string, packed into one integer."""
        routes, settled = self._router.settled_routes(strings)
        if self._router.mode == Routing.GREEDY:
            settled = np.array([self._ends_every_branch(string) for string in strings])
        return (((routes.astype(np.int64) - UNMAPPED) << 1) | settled).tolist()

    def _ends_every_branch(self, string: bytes) -> bool:
        """The oracle's rule under `greedy`: no student token is strictly longer than the string and begins with it."""
        low, high = self._student_order.prefix_range(string)
        return high == low or len(self._student_order.strings[high - 1]) == len(string)

    def reachable_cells(self, strings: Sequence[bytes]) -> list[NDArray[np.int32]]:
        """Student ids that φ may give once bytes follow each string; none for a settled one.

        They are its prefixes and the tokens that it begins, of which the `MAX_EXTENSIONS` lowest ids: merges made
        early. Many strings begin thousands of tokens (a space does), so this is not all of them.
        """
        _, settled = self.look_up(strings)
        none = np.zeros(0, np.int32)
        return [
            none if is_settled else self._reachable.get_or_build(string, partial(self._reach, string))
            for string, is_settled in zip(strings, settled.tolist(), strict=True)
        ]

    def _reach(self, string: bytes) -> NDArray[np.int32]:
        student = self._router.student
        low, high = self._student_order.prefix_range(string)
        extensions = np.unique(student.canonical_ids[self._student_order.ids_by_rank[low:high]])[:MAX_EXTENSIONS]
        found = (student.ids_by_bytes.get(string[:length]) for length in range(1, len(string)))
        prefixes = np.array([token for token in found if token is not None], np.int32)
        return np.concatenate([prefixes, extensions])


def _weigh(cells: NDArray[np.int32]) -> int:
    return len(cells) + 64
