"""Ragged rows of sparse targets: what a teacher says about each position of a student's response.

One row is one student position. Its cells are (student id, probability); what no cell holds is the residual, split by
cause. Arrays are ragged (CSR), never padded. The module knows nothing of how targets are made, sent or learned.

Axes: R rows, C cells of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np
from numpy.typing import NDArray


class RowCase(IntEnum):
    """How a student position lies against the teacher's tokens (spec §5)."""

    ALIGNED = 0
    INTERIOR = 1
    SPANNING = 2
    EXCLUDED = 3
    CONTROL = 4
    GIVEN = 5
    STOP = 6

    @property
    def has_target(self) -> bool:
        """Whether rows of this case carry a distribution."""
        return self in (RowCase.ALIGNED, RowCase.INTERIOR, RowCase.SPANNING, RowCase.STOP)


class RowFlag(IntFlag):
    """Facts about a row beside its case."""

    CHAIN = 1
    """The realized chain or the lookahead moved mass; else every teacher token was resolved by itself."""
    WHITESPACE = 2
    """The emitted student token is only 0x20 and 0x09 bytes (spec §5, whitespace mask)."""
    NON_CANONICAL = 4
    """The row touches bytes that are not valid UTF-8, or that the teacher spells byte by byte."""


@dataclass(frozen=True)
class TargetRows:
    """Rows `first_row` … `first_row + R − 1` of one response, in order.

    Rows without a target (excluded, control, given) have no cells, residuals 0 and `emitted_log_prob` NaN; every other
    row sums to one: Σ exp(cell_log_probs) + residual_unmapped + residual_control + residual_truncated.
    A stop row holds one cell, the emitted stop token; the rest stands in the residual `residual_control`.
    """

    first_row: int
    cases: NDArray[np.uint8]
    """[R], values of `RowCase`."""
    flags: NDArray[np.uint8]
    """[R], bits of `RowFlag`."""
    row_offsets: NDArray[np.int64]
    """[R + 1], cells of row i are `row_offsets[i] : row_offsets[i + 1]`, by falling probability."""
    cell_ids: NDArray[np.int32]
    """[C], student token ids, unique within a row."""
    cell_log_probs: NDArray[np.float32]
    """[C], natural logarithms; −inf for a cell of mass 0."""
    residual_unmapped: NDArray[np.float32]
    """[R], mass of teacher tokens that no student token begins."""
    residual_control: NDArray[np.float32]
    """[R], mass of control tokens and of padded head rows (a stop row: all that is not a stop)."""
    residual_truncated: NDArray[np.float32]
    """[R], mass of cells that truncation dropped."""
    emitted_log_prob: NDArray[np.float32]
    """[R], the target's log-probability of the token the student emitted; −inf if 0, NaN without a target."""

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.cases)

    @property
    def residual(self) -> NDArray[np.float32]:
        """[R], ∅: the sum of the three residuals."""
        return self.residual_unmapped + self.residual_control + self.residual_truncated

    def row_mass(self) -> NDArray[np.float64]:
        """[R], total probability of each row; 1 within 1e-6 for rows with a target, 0 for the others."""
        cells = np.exp(self.cell_log_probs.astype(np.float64))
        sums = np.zeros(self.num_rows + 1)
        np.cumsum(np.add.reduceat(np.append(cells, 0.0), self.row_offsets[:-1]) * (np.diff(self.row_offsets) > 0), out=sums[1:])
        return np.diff(sums) + self.residual.astype(np.float64)
