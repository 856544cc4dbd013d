"""Ragged rows of sparse targets: what a teacher says about each position of a student's response.

One row is one student position. Its cells are (student id, probability); what no cell holds is the residual, split by
cause. Arrays are ragged (CSR), never padded. The module knows nothing of how targets are made, sent or learned.

Axes: R rows, C cells of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


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
        return row_sums(cells, self.row_offsets) + self.residual.astype(np.float64)

    def has_target(self) -> NDArray[np.bool_]:
        """[R], whether the row carries a distribution."""
        return np.isin(self.cases, _CASES_WITH_TARGET)

    def slice(self, start: int, stop: int) -> TargetRows:
        """Rows `start` … `stop − 1` of these (0 is `first_row`), as views; bounds are clipped as Python's are."""
        start, stop, _ = slice(start, stop).indices(self.num_rows)
        rows = slice(start, max(start, stop))
        row_offsets = self.row_offsets[rows.start : rows.stop + 1]
        cells = slice(row_offsets[0], row_offsets[-1])
        return TargetRows(
            first_row=self.first_row + rows.start,
            row_offsets=row_offsets - row_offsets[0],
            **{name: getattr(self, name)[rows] for name in _ROW_ARRAYS},
            **{name: getattr(self, name)[cells] for name in _CELL_ARRAYS},
        )

    @classmethod
    def empty(cls, first_row: int = 0) -> TargetRows:
        """No rows, at `first_row`."""
        return cls(
            first_row=first_row,
            row_offsets=np.zeros(1, np.int64),
            **{name: np.empty(0, dtype) for name, dtype in (_ROW_ARRAYS | _CELL_ARRAYS).items()},
        )

    @classmethod
    def concatenate(cls, parts: Sequence[TargetRows]) -> TargetRows:
        """Join consecutive parts of one response.

        Raises:
            ValueError: the parts do not follow one another.
        """
        if not parts:
            return cls.empty()
        for previous, part in pairwise(parts):
            if part.first_row != previous.first_row + previous.num_rows:
                raise ValueError(f"rows from {part.first_row} do not follow those from {previous.first_row}")
        counts = np.concatenate([np.diff(part.row_offsets) for part in parts])
        return cls(
            first_row=parts[0].first_row,
            row_offsets=offsets_of(counts),
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _ROW_ARRAYS | _CELL_ARRAYS},
        )

    def to_torch(self, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
        """Copies of all arrays as tensors on `device`, by field name, with `residual` beside them."""
        import torch  # the contract itself must import without torch

        names = ("row_offsets", *_ROW_ARRAYS, *_CELL_ARRAYS, "residual")
        return {name: torch.tensor(getattr(self, name), device=device) for name in names}


def row_sums(values: NDArray[np.float64], row_offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """[R], sums of the ragged rows of `values` [C]; 0 for a row without cells."""
    sums = np.add.reduceat(np.append(values, 0.0), row_offsets[:-1])
    return np.where(np.diff(row_offsets) > 0, sums, 0.0)  # reduceat gives an empty row its neighbour's first value


def offsets_of(counts: NDArray[np.integer]) -> NDArray[np.int64]:
    """[R + 1], offsets of ragged rows with `counts` [R] cells each."""
    row_offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=row_offsets[1:])
    return row_offsets


_CASES_WITH_TARGET = [case for case in RowCase if case.has_target]
_ROW_ARRAYS: dict[str, type] = {
    "cases": np.uint8,
    "flags": np.uint8,
    "residual_unmapped": np.float32,
    "residual_control": np.float32,
    "residual_truncated": np.float32,
    "emitted_log_prob": np.float32,
}
_CELL_ARRAYS: dict[str, type] = {"cell_ids": np.int32, "cell_log_probs": np.float32}
