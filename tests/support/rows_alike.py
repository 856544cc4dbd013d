"""Compares the rows of one response that two batches gave.

Float32 sums depend on the batch, so rows agree within 1e-5 where the wire has float32; log-probabilities of cells
travel rounded (`tokbridge.cell_code`), and may round the other way. Where rows were cut to k cells, two cells that are
equal within that may change places at the cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokbridge.targets import TargetRows

TOLERANCE = 1e-5
"""Relative and absolute, as `numpy.allclose`."""
_CELL_TOLERANCE = 1e-4
_CELL_STEP = 8e-4
"""One step of a cell's code, as a multiple of the root of its size; for ids of 18 bits."""

_ROW_ARRAYS = ("emitted_log_prob", "residual_unmapped", "residual_control", "residual_truncated")


@dataclass
class RowDifference:
    """The largest difference in each kind of value, as a multiple of what is allowed."""

    whole: float = 0.0
    """Values that float32 carries."""
    cells: float = 0.0

    def include(self, other: RowDifference) -> None:
        """Keep the larger."""
        self.whole, self.cells = max(self.whole, other.whole), max(self.cells, other.cells)


def compare_rows(expected: TargetRows, rows: TargetRows) -> RowDifference:
    """How far `rows` are off.

    Raises:
        AssertionError: too far, or they are other rows.
    """
    assert rows.first_row == expected.first_row
    for name in ("cases", "flags"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name), err_msg=name)
    swapped, cells = _compare_cells(expected, rows)
    found = RowDifference(cells=cells)
    for name in _ROW_ARRAYS:
        excess = _excess(getattr(expected, name), getattr(rows, name), TOLERANCE, TOLERANCE)
        if name == "residual_truncated":
            excess = excess[~swapped]  # there the cut took another cell, of a mass that is the same
        worst = float(excess.max(initial=0.0))
        assert worst <= 1.0, f"{name} is off by {worst:.2f} times what is allowed, at row {int(excess.argmax())}"
        found.whole = max(found.whole, worst)
    return found


def _compare_cells(expected: TargetRows, rows: TargetRows) -> tuple[np.ndarray, float]:
    """Rows [R] whose cut took another cell; and the largest excess of the cells they share."""
    left, right = _keys(expected), _keys(rows)
    _, of_left, of_right = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    log_probs = expected.cell_log_probs[of_left]
    excess = _excess(log_probs, rows.cell_log_probs[of_right], _cell_tolerance(log_probs), 0.0)
    worst = float(excess.max(initial=0.0))
    assert worst <= 1.0, f"a cell is off by {worst:.2f} times what is allowed"
    swapped = np.zeros(rows.num_rows, bool)
    for one, other, shared in ((expected, rows, of_left), (rows, expected, of_right)):
        alone = np.setdiff1d(np.arange(len(one.cell_ids)), shared)
        row = np.repeat(np.arange(one.num_rows), np.diff(one.row_offsets))[alone]
        smallest = _smallest_chosen(other, row)
        bound = smallest + 2 * _cell_tolerance(smallest)
        assert (one.cell_log_probs[alone] <= bound).all(), "a cell is missing"
        swapped[row] = True
    return swapped, worst


def _smallest_chosen(rows: TargetRows, row: np.ndarray) -> np.ndarray:
    """Where the cut of these rows was: their last cell, or the one before it where that is the emitted token's, which
    stays however small it is."""
    counts = np.diff(rows.row_offsets)[row]
    assert (counts > 0).all(), "one of the rows has no cells"
    last = rows.row_offsets[row + 1] - 1
    smallest = rows.cell_log_probs[last]
    is_emitted = np.abs(smallest - rows.emitted_log_prob[row]) <= _cell_tolerance(smallest)
    return rows.cell_log_probs[last - (is_emitted & (counts > 1))]


def _cell_tolerance(log_probs: np.ndarray) -> np.ndarray:
    return _CELL_TOLERANCE + _CELL_STEP * np.sqrt(-log_probs.astype(np.float64))


def _keys(rows: TargetRows) -> np.ndarray:
    """[C], one number for row and token."""
    row = np.repeat(np.arange(rows.num_rows, dtype=np.int64), np.diff(rows.row_offsets))
    return (row << 32) + rows.cell_ids


def _excess(expected: np.ndarray, actual: np.ndarray, absolute: float | np.ndarray, relative: float) -> np.ndarray:
    """|difference| over what is allowed; 0 where both are the same infinity or NaN, infinite where one is."""
    expected, actual = expected.astype(np.float64), actual.astype(np.float64)
    same = (expected == actual) | (np.isnan(expected) & np.isnan(actual))
    with np.errstate(invalid="ignore"):
        excess = np.abs(actual - expected) / (absolute + relative * np.abs(expected))
    return np.where(same, 0.0, np.where(np.isfinite(excess), excess, np.inf))
