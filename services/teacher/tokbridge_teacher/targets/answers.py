"""What the device pass has answered so far for one response, in plan order.

Axes: M teacher tokens, U support cells, Q prefix queries, T top tokens of a position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InternalError
from tokbridge_teacher.targets.marginal import ChunkResult
from tokbridge_teacher.targets.plan import ResponsePlan


class Answers:
    """Scalars of all positions read; rows of cells are not kept here."""

    def __init__(self, plan: ResponsePlan) -> None:
        self._num_positions = plan.num_positions
        self.num_read = 0
        """Positions read so far."""
        self.log_probs = np.full(len(plan.teacher_ids), np.nan)
        """float64 [M], ln q of the realized teacher tokens."""
        self.support_masses = np.full(len(plan.support_cells), np.nan, np.float32)
        """[U]."""
        self.query_log_masses = np.full(len(plan.queries.positions), np.nan)
        """float64 [Q]."""
        self.stop_log_prob = float("nan")
        """ln of the stop mass after the content."""
        self.top_ids: NDArray[np.int32] = np.zeros((0, 0), np.int32)
        """[M + 1, T], for `lookahead`."""
        self.top_probs: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        """[M + 1, T]."""

    def add(self, result: ChunkResult) -> None:
        """Take over the next chunk.

        Raises:
            InternalError: it does not follow the chunk before.
        """
        if result.start != self.num_read or result.stop > self._num_positions:
            raise InternalError(f"chunk {result.start} … {result.stop} does not follow position {self.num_read}")
        self.num_read = result.stop
        self.log_probs[result.start : result.start + len(result.realized_log_probs)] = result.realized_log_probs
        self.query_log_masses[result.query_numbers] = result.query_log_masses
        self.support_masses[result.block.support_numbers] = result.block.support_masses
        if result.stop_log_prob is not None:
            self.stop_log_prob = result.stop_log_prob
        self._add_top_tokens(result)

    def _add_top_tokens(self, result: ChunkResult) -> None:
        count = result.top_ids.shape[1]
        if self.top_ids.shape[1] != count:
            self.top_ids = np.zeros((self._num_positions, count), np.int32)
            self.top_probs = np.zeros((self._num_positions, count), np.float32)
        if count:
            self.top_ids[result.start : result.stop] = result.top_ids
            self.top_probs[result.start : result.stop] = result.top_probs
