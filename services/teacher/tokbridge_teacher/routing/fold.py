"""Sum the columns of a matrix into groups: deterministic on every device, accurate to a few units in the last place.

Atomic adds would give other bits in every run on a GPU. Here a group of n columns is summed as a balanced tree in log n
steps, each a gather and an add; groups of one, nearly all of a vocabulary, are a single gather. Knows no tokens.

Axes: P rows, L input columns, C output columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class _Level:
    """One step of all trees: node i is `left[i]` + `right[i]` for i < len(right), else `left[i]` alone."""

    left: torch.Tensor
    right: torch.Tensor
    done_slots: torch.Tensor
    """Nodes that are whole sums now, and"""
    done_columns: torch.Tensor
    """the output columns they go to."""


class Fold:
    """`fold(x_PL)[:, c]` = Σ x_PL[:, l] over l with `columns[l] == c`; a negative column drops its input."""

    def __init__(self, columns: NDArray[np.integer], num_columns: int, device: torch.device | str) -> None:
        self.num_columns = num_columns
        self.num_inputs = len(columns)
        columns = np.asarray(columns, np.int64)
        members = np.argsort(columns, kind="stable")
        members = members[np.searchsorted(columns[members], 0) :]
        counts = np.bincount(columns[members], minlength=num_columns)
        starts = np.cumsum(counts) - counts
        first = np.where(counts > 0, members[np.minimum(starts, max(len(members) - 1, 0))] if len(members) else 0, 0)
        self._first = torch.as_tensor(first, device=device)
        self._occupied = torch.as_tensor((counts > 0).astype(np.float32), device=device)
        shared = np.flatnonzero(counts > 1)
        in_shared = np.repeat(counts > 1, counts)
        self._members = torch.as_tensor(members[in_shared], device=device)
        self._levels = _tree_levels(counts[shared], shared, device)

    def __call__(self, x_PL: torch.Tensor) -> torch.Tensor:
        """Float [P, C] from float [P, L]; values must be finite."""
        out_PC = x_PL.index_select(1, self._first).mul_(self._occupied)
        nodes = x_PL.index_select(1, self._members) if self._levels else x_PL
        for level in self._levels:
            sums = nodes.index_select(1, level.left)
            sums[:, : len(level.right)] += nodes.index_select(1, level.right)
            out_PC.index_copy_(1, level.done_columns, sums.index_select(1, level.done_slots))
            nodes = sums
        return out_PC


def _tree_levels(sizes: NDArray[np.int64], columns: NDArray[np.int64], device: torch.device | str) -> list[_Level]:
    """The steps that sum runs of `sizes` adjacent nodes into `columns` (one column a run)."""
    levels: list[_Level] = []
    slots = np.arange(sizes.sum())
    while len(sizes):
        rank = np.arange(len(slots)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        even = rank % 2 == 0
        paired = even & (rank + 1 < np.repeat(sizes, sizes))
        num_paired = int(paired.sum())
        next_slots = np.where(paired[even], np.cumsum(paired[even]) - 1, num_paired + np.cumsum(~paired[even]) - 1)
        left = np.concatenate([slots[paired], slots[even & ~paired]])
        sizes = (sizes + 1) // 2
        done = np.repeat(sizes == 1, sizes)
        index = (left, slots[~even], next_slots[done], columns[sizes == 1])
        levels.append(_Level(*(torch.as_tensor(array, device=device) for array in index)))
        slots, columns, sizes = next_slots[~done], columns[sizes > 1], sizes[sizes > 1]
    return levels
