"""The plan of one response: its rows, what the device must compute for them, what the host does with the answers.

A plan holds no tensors and no vocabulary; the device's part of it is `device_plan`. `planning.build_plan` makes it,
`assembly.RowAssembler` reads the answers.

Axes: M teacher tokens, N student ids, R rows (N and the stop row), U support cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokbridge_teacher.routing.interior_routes import InteriorRoutes
from tokbridge_teacher.targets.chain import Chain
from tokbridge_teacher.targets.device_plan import DevicePlan, Int64Array, PlanSlice, PrefixQueries, RowGroup
from tokbridge_teacher.targets.options import ScoringOptions


@dataclass(frozen=True, eq=False)
class ResponsePlan:
    """One response: its rows and what they need."""

    options: ScoringOptions
    teacher_ids: Int64Array
    """[M]."""
    cases: NDArray[np.uint8]
    """[R]."""
    flags: NDArray[np.uint8]
    """[R], without `RowFlag.CHAIN`."""
    emitted_ids: NDArray[np.int32]
    """[R], student ids as sampled, the stop token last if there is a stop row."""
    last_positions: Int64Array
    """[R], the last teacher position that a row reads; −1 for rows without a target."""
    emitted_support: Int64Array
    """[R], place of the emitted token's mass among the U support cells; −1 where there is none."""
    has_stop_row: bool
    stop_cell_id: int
    """s*: the student id that stands for all teacher stop tokens."""
    base: RowGroup
    interior: RowGroup
    interior_routes: tuple[InteriorRoutes, ...]
    interior_realized: Int64Array
    queries: PrefixQueries
    chains: tuple[Chain, ...]
    """By row."""
    support_cells: NDArray[np.int32]
    """[U], canonical student ids."""
    support_rows: Int64Array
    """[U], the row of each, ascending."""
    head_positions: Int64Array
    """[N], j, −1 where a row has none."""
    head_bytes: tuple[bytes, ...]
    """[N], bytes of w_j after r; filled for `lookahead` only."""
    stop_ids: Int64Array
    control_ids: Int64Array
    num_cells: int
    """Cells of largest mass that the device pass keeps a row."""

    @property
    def num_positions(self) -> int:
        """M + 1: the last position is the one after the last content token."""
        return len(self.teacher_ids) + 1

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.cases)

    @cached_property
    def device_plan(self) -> DevicePlan:
        """What the device must compute."""
        return DevicePlan(
            self.teacher_ids,
            self.base,
            self.interior,
            self.interior_routes,
            self.interior_realized,
            self.queries,
            self.stop_ids,
            self.control_ids,
            num_cells=self.num_cells,
            num_top_tokens=self.options.lookahead_tokens if self.options.looks_ahead else 0,
        )

    def slice(self, start: int, stop: int) -> PlanSlice:
        """What concerns positions `start` … `stop − 1`."""
        return self.device_plan.slice(start, stop)
