"""The device's part of a plan: index arrays sorted by teacher position, and the slices that `marginal` takes.

No tensors, no vocabulary, nothing of rows without a target: it is all that a worker process must be sent.

Axes: M teacher tokens, P positions of a slice, B rows that start at a teacher boundary, I rows that start inside a
teacher token, Q prefix queries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tokbridge_teacher.routing.interior_routes import InteriorRoutes

Int64Array: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows to be computed in one way, with the cells whose masses are wanted whatever their rank."""

    rows: Int64Array
    """[n], row numbers, ascending."""
    positions: Int64Array
    """[n], teacher positions; those of a slice count from its start."""
    support_owners: Int64Array
    """[u], index into `rows`, ascending."""
    support_columns: Int64Array
    """[u], student id; for interior rows the slot in `InteriorRoutes.cells`, −1 for a cell that φ_r never gives."""
    support_numbers: Int64Array
    """[u], place of the answer among all U of the plan."""

    def take(self, indices: Int64Array) -> RowGroup:
        """The rows at `indices`, ascending."""
        kept = np.isin(self.support_owners, indices)
        owners = np.searchsorted(indices, self.support_owners[kept])
        support = (self.support_columns[kept], self.support_numbers[kept])
        return RowGroup(self.rows[indices], self.positions[indices], owners, *support)

    def slice(self, start: int, stop: int) -> tuple[RowGroup, slice]:
        """The rows of positions `start` … `stop − 1`, and which ones of [n] they are."""
        low, high = np.searchsorted(self.positions, (start, stop))
        first, last = np.searchsorted(self.support_owners, (low, high))
        group = RowGroup(
            self.rows[low:high],
            self.positions[low:high] - start,
            self.support_owners[first:last] - low,
            self.support_columns[first:last],
            self.support_numbers[first:last],
        )
        return group, slice(low, high)


@dataclass(frozen=True, eq=False)
class PrefixQueries:
    """Masses π_k(c) wanted for chains."""

    positions: Int64Array
    """[Q], k, ascending; those of a slice count from its start."""
    ranks: Int64Array
    """[Q, 2], the range of the byte order that starts with c."""
    numbers: Int64Array
    """[Q], place of the answer among all Q of the plan."""

    def slice(self, start: int, stop: int) -> PrefixQueries:
        """The queries at positions `start` … `stop − 1`."""
        low, high = np.searchsorted(self.positions, (start, stop))
        return PrefixQueries(self.positions[low:high] - start, self.ranks[low:high], self.numbers[low:high])


@dataclass(frozen=True, eq=False)
class PlanSlice:
    """The part of a plan that concerns positions `start` … `stop − 1`. Position p predicts teacher token p."""

    start: int
    stop: int
    realized_ids: Int64Array
    """The teacher tokens at these positions; one fewer than positions if the last is the one after the content."""
    base: RowGroup
    interior: RowGroup
    interior_routes: tuple[InteriorRoutes, ...]
    """[I of the slice], φ_r of each interior row."""
    interior_realized: Int64Array
    """[I of the slice], the realized teacher token's place among the tokens that start with r."""
    queries: PrefixQueries
    stop_ids: Int64Array
    """S_t."""
    control_ids: Int64Array
    """Teacher ids without content bytes outside S_t."""
    holds_end: bool
    """Whether the last position is the one after the content, where the stop mass is read."""
    num_cells: int
    """Cells of largest mass wanted a row."""
    num_top_tokens: int
    """Teacher tokens wanted a position (0: none)."""

    def slice(self, start: int, stop: int) -> PlanSlice:
        """The part that concerns positions `start` … `stop − 1`, counted from this one's start; the cost is that of a
        few binary searches.
        """
        base, _ = self.base.slice(start, stop)
        interior, which = self.interior.slice(start, stop)
        return replace(
            self,
            start=self.start + start,
            stop=self.start + stop,
            realized_ids=self.realized_ids[start:stop],
            base=base,
            interior=interior,
            interior_routes=self.interior_routes[which],
            interior_realized=self.interior_realized[which],
            queries=self.queries.slice(start, stop),
            holds_end=self.holds_end and self.start + stop == self.stop,
        )


@dataclass(frozen=True, eq=False)
class DevicePlan:
    """What the device must compute for one response."""

    teacher_ids: Int64Array
    """[M]."""
    base: RowGroup
    interior: RowGroup
    interior_routes: tuple[InteriorRoutes, ...]
    """[I]."""
    interior_realized: Int64Array
    """[I]."""
    queries: PrefixQueries
    stop_ids: Int64Array
    control_ids: Int64Array
    num_cells: int
    """Cells of largest mass that are kept a row."""
    num_top_tokens: int
    """Teacher tokens wanted a position (0: none)."""

    @property
    def num_positions(self) -> int:
        """M + 1: the last position is the one after the last content token."""
        return len(self.teacher_ids) + 1

    def slice(self, start: int, stop: int) -> PlanSlice:
        """What concerns positions `start` … `stop − 1`."""
        return self._whole.slice(start, stop)

    @cached_property
    def _whole(self) -> PlanSlice:
        return PlanSlice(
            0,
            self.num_positions,
            self.teacher_ids,
            self.base,
            self.interior,
            self.interior_routes,
            self.interior_realized,
            self.queries,
            self.stop_ids,
            self.control_ids,
            holds_end=True,
            num_cells=self.num_cells,
            num_top_tokens=self.num_top_tokens,
        )
