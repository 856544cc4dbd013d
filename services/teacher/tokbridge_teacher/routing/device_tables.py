"""Routing tables of a pair as tensors on one device.

Knows arrays, not vocabularies: a backend may build it inside a worker process that holds nothing else.

Axes: V teacher ids (LM-head rows), S student ids; column S of a folded row is the stop column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokbridge_teacher.routing.bounded_cache import BoundedCache
from tokbridge_teacher.routing.fold import Fold
from tokbridge_teacher.routing.interior_routes import InteriorRoutes

COLUMN_BLOCK = 256
"""Folded rows are padded with empty columns to a multiple of it."""
MAX_INTERIOR_ENTRIES = 2_000_000
"""Entries of folded φ_r kept over all r: about 50 MB on the device."""


@dataclass(frozen=True, eq=False)
class TableArrays:
    """What tables on any device are made of; small enough to be sent to a worker process."""

    phi: NDArray[np.int32]
    """[V], student id, −1: unmapped."""
    extended: NDArray[np.bool_]
    """[V], which tokens a student token extends."""
    teacher_ids_by_rank: NDArray[np.int32]
    """Teacher id of each place of the byte order."""
    byteless_ids: NDArray[np.int64]
    """Teacher ids without content bytes."""
    student_size: int
    """S."""


class DeviceTables:
    """φ as a fold into S + 1 columns (rounded up), the byte order, and folds of φ_r made on first use."""

    def __init__(self, arrays: TableArrays, device: torch.device | str) -> None:
        self.arrays = arrays
        self.device = torch.device(device)
        self.teacher_size = len(arrays.phi)
        self.student_size = arrays.student_size
        num_columns = -(-(self.student_size + 1) // COLUMN_BLOCK) * COLUMN_BLOCK
        self.fold = Fold(arrays.phi, num_columns, self.device)
        unmapped = np.setdiff1d(np.flatnonzero(arrays.phi < 0), arrays.byteless_ids)
        self.unmapped_ids = torch.as_tensor(unmapped, device=self.device)
        self.extended = torch.as_tensor(arrays.extended.astype(np.float32), device=self.device)
        """float32 [V], 1 or 0: summing its tokens' masses is one product."""
        self.ids_by_rank = torch.as_tensor(arrays.teacher_ids_by_rank.astype(np.int64), device=self.device)
        self._interior: BoundedCache[bytes, Fold] = BoundedCache(
            MAX_INTERIOR_ENTRIES, lambda fold: fold.num_inputs + 64
        )

    def interior_fold(self, routes: InteriorRoutes) -> Fold:
        """φ_r as a fold of the tokens that start with r into its C cells and, last, the unmapped column."""
        return self._interior.get_or_build(
            routes.prefix, lambda: Fold(routes.slots, len(routes.cells) + 1, self.device)
        )
