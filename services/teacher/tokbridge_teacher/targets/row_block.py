"""Base rows as the device pass gives them: cells of largest mass, and the masses that were asked for beside them.

Host arrays. Knows neither plans nor tensors.

Axes: n rows, K cells, u support cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Base distributions of some rows: the cells of largest mass, and what stands in no cell."""

    rows: NDArray[np.int64]
    """[n], row numbers."""
    cell_ids: NDArray[np.int32]
    """[n, K], student ids by falling mass, the student's vocabulary size for s*, −1 past the last cell."""
    cell_masses: NDArray[np.float32]
    """[n, K], probabilities, 0 past the last cell."""
    unmapped: NDArray[np.float32]
    """[n], mass of content tokens with φ = ⊥."""
    control: NDArray[np.float32]
    """[n], mass of byteless teacher tokens that are no stop tokens."""
    unresolved: NDArray[np.float32]
    """[n], mass of content tokens whose bytes some student token strictly extends (spec §5)."""
    head_log_probs: NDArray[np.float64]
    """[n], ln of q_j(w_j)/π_j(r); NaN where no token that starts with r has any mass."""
    support_numbers: NDArray[np.int64]
    """[u], place among all support cells of the plan."""
    support_masses: NDArray[np.float32]
    """[u]."""

    @classmethod
    def joined(cls, blocks: Sequence[RowBlock]) -> RowBlock:
        """The rows of all blocks, one after the other; at least one block."""
        return cls(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(cls)))

    def take(self, indices: NDArray[np.int64]) -> RowBlock:
        """The rows at `indices`, without their support."""
        none = np.zeros(0)
        return RowBlock(
            **{name: getattr(self, name)[indices] for name in _ROW_ARRAYS},
            support_numbers=none.astype(np.int64),
            support_masses=none.astype(np.float32),
        )


_ROW_ARRAYS = ("rows", "cell_ids", "cell_masses", "unmapped", "control", "unresolved", "head_log_probs")


def split_at(blocks: Sequence[RowBlock], stop: int) -> tuple[RowBlock, RowBlock]:
    """All rows of `blocks` in ascending order, split into those before row `stop` and the others; without support."""
    block = RowBlock.joined(blocks)
    order = np.argsort(block.rows, kind="stable")
    count = int((block.rows < stop).sum())
    return block.take(order[:count]), block.take(order[count:])
