"""Routing tables of a teacher–student pair: φ over the teacher's vocabulary, φ_r for prefixes r, byte order (spec §4).

Compiled once per pair and kept on disk. Host side only: the tables as tensors are `device_tables.py`.

Axes: V teacher ids (LM-head rows), S student ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tokbridge.modes import Routing
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.bounded_cache import BoundedCache
from tokbridge_teacher.routing.byte_order import ByteOrder, extended_by
from tokbridge_teacher.routing.device_tables import DeviceTables, TableArrays
from tokbridge_teacher.routing.disk_cache import DEFAULT_CACHE_BYTES, CompiledRoutes, RoutingCache, pair_key
from tokbridge_teacher.routing.interior_routes import InteriorRoutes
from tokbridge_teacher.routing.router import UNMAPPED, Router
from tokbridge_teacher.routing.statistics import RoutingStatistics, count_routes
from tokbridge_teacher.routing.string_routes import StringRoutes
from tokbridge_teacher.segmentation import ContentTokenizer

MAX_INTERIOR_ENTRIES = 4_000_000
"""Entries of φ_r kept over all r: 16 MB on the host."""


class PairTables:
    """All that routing knows of one pair; immutable but for its caches, which may be shared between threads."""

    def __init__(self, teacher: ByteVocabulary, router: Router, routes: CompiledRoutes, statistics: RoutingStatistics):
        self.teacher = teacher
        self.student = router.student
        self.router = router
        self.phi = routes.phi
        """int32 [V], student id or `UNMAPPED` (control tokens too)."""
        self.extended = routes.extended
        """bool [V], whether some student token strictly extends the token's bytes."""
        self.teacher_order = routes.teacher_order
        self.statistics = statistics
        self._interior: BoundedCache[bytes, InteriorRoutes] = BoundedCache(
            MAX_INTERIOR_ENTRIES, lambda routes: len(routes.slots) + 64
        )

    @property
    def routing(self) -> Routing:
        """The routing mode these tables were compiled for."""
        return self.router.mode

    @cached_property
    def strings(self) -> StringRoutes:
        """The pair map of `lookahead`, made on first use."""
        return StringRoutes(self.router)

    @cached_property
    def byteless_ids(self) -> NDArray[np.int64]:
        """Teacher ids without content bytes: control tokens, stop tokens, padded head rows."""
        return np.flatnonzero(self.teacher.lengths < 0)

    def interior(self, prefix: bytes) -> InteriorRoutes:
        """φ_r for r = `prefix`, cached. A token that is exactly r has nothing left and is unmapped."""
        return self._interior.get_or_build(prefix, lambda: self._build_interior(prefix))

    def _build_interior(self, prefix: bytes) -> InteriorRoutes:
        low, high = self.teacher_order.prefix_range(prefix)
        skip = len(prefix)
        strings = [string[skip:] for string in self.teacher_order.strings[low:high]]
        routes = self.router.routes(strings)
        cells, slots = np.unique(routes[routes != UNMAPPED], return_inverse=True)
        all_slots = np.full(high - low, len(cells), np.int64)
        all_slots[routes != UNMAPPED] = slots
        return InteriorRoutes(prefix, low, high, cells, all_slots, extended_by(strings, self._student_strings))

    @cached_property
    def _student_strings(self) -> list[bytes]:
        return sorted(self.student.ids_by_bytes)

    def on_device(self, device: torch.device | str) -> DeviceTables:
        """The same tables as tensors on `device`; build once per device and keep."""
        order = self.teacher_order.ids_by_rank
        return DeviceTables(TableArrays(self.phi, self.extended, order, self.byteless_ids, self.student.size), device)


def compile_pair(
    teacher: ByteVocabulary,
    student: ByteVocabulary,
    routing: Routing,
    *,
    student_encoder: ContentTokenizer | None,
    cache_folder: Path | None,
    max_cache_bytes: int = DEFAULT_CACHE_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> PairTables:
    """Compile φ of a pair, or read it from `cache_folder` (a file that is missing or damaged is written anew).

    Raises:
        UnsupportedModeError: `bpe` without `student_encoder`.
    """
    started = clock()
    router = Router(student, routing, student_encoder)
    cache = RoutingCache(cache_folder, max_cache_bytes)
    key = pair_key(teacher, student, router)
    routes = cache.load(key, teacher, student)
    from_cache = routes is not None
    if routes is None:
        routes = _compile(teacher, router)
        cache.store(key, routes)
    statistics = count_routes(teacher, student, routes.phi, routing, clock() - started, from_cache)
    return PairTables(teacher, router, routes, statistics)


def _compile(teacher: ByteVocabulary, router: Router) -> CompiledRoutes:
    order = ByteOrder(teacher)
    phi = np.full(teacher.size, UNMAPPED, np.int32)
    phi[order.ids_by_rank] = router.routes(order.strings)
    extended = np.zeros(teacher.size, np.bool_)
    extended[order.ids_by_rank] = extended_by(order.strings, sorted(router.student.ids_by_bytes))
    return CompiledRoutes(phi, extended, order)
