"""φ_r over the teacher tokens that start with one realized prefix r (spec §4): what a row inside a teacher token needs.

Axes: L teacher tokens that start with r, C student ids that φ_r gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class InteriorRoutes:
    """φ_r over the L teacher tokens that start with r (ranks `low : high` of the byte order)."""

    prefix: bytes
    low: int
    high: int
    cells: NDArray[np.int32]
    """[C], the student ids that φ_r gives, ascending."""
    slots: NDArray[np.int64]
    """[L], index into `cells` of φ_r of each token; C where unmapped."""
    extended: NDArray[np.bool_]
    """[L], whether some student token strictly extends what follows r (spec §5, unresolved)."""

    def slots_of(self, cells: NDArray[np.int32]) -> NDArray[np.int64]:
        """Index of each student id among `cells`; −1 if φ_r gives it for no token: int64, as long as the argument."""
        slots = np.searchsorted(self.cells, cells)
        is_given = slots < len(self.cells)
        is_given[is_given] = self.cells[slots[is_given]] == cells[is_given]
        return np.where(is_given, slots, -1)
