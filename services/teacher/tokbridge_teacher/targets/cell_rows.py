"""A batch of rows on their way to targets: dense arrays of cells, moves of mass between cells, truncation (spec §5,
§6).

Pure array code; it does not know why mass moves.

Axes: n rows of the batch, K columns, m moves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

RESIDUAL = -1
"""Cell number of the unmapped residual, as source or destination of a move."""


@dataclass(frozen=True, eq=False)
class Moves:
    """Mass that rows gain or lose in single cells; several moves of one cell add up."""

    owners: NDArray[np.int64]
    """[m], row of the batch."""
    cells: NDArray[np.int64]
    """[m], cell id or `RESIDUAL`."""
    deltas: NDArray[np.float64]
    """[m]."""

    @staticmethod
    def join(parts: list[Moves]) -> Moves:
        """All moves of several lists."""
        return Moves(
            np.concatenate([np.zeros(0, np.int64), *(part.owners for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.cells for part in parts)]),
            np.concatenate([np.zeros(0), *(part.deltas for part in parts)]),
        )

    def summed(self) -> Moves:
        """One move for each row and cell, by row."""
        pairs, inverse = np.unique(np.stack([self.owners, self.cells]), axis=1, return_inverse=True)
        return Moves(pairs[0], pairs[1], np.bincount(inverse.ravel(), self.deltas, pairs.shape[1]).astype(np.float64))


@dataclass(frozen=True, eq=False)
class KnownCells:
    """Base masses of cells that were asked for, by row and cell."""

    owners: NDArray[np.int64]
    cells: NDArray[np.int64]
    masses: NDArray[np.float64]

    def find(self, owners: NDArray[np.int64], cells: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mass of each (row, cell), 0 where it was not asked for."""
        width = int(max(self.cells.max(initial=0), cells.max(initial=0))) + 1
        keys, first = np.unique(self.owners * width + self.cells, return_index=True)
        wanted = owners * width + cells
        place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        if len(keys) == 0:
            return np.zeros(len(wanted))
        return np.where(keys[place] == wanted, self.masses[first[place]], 0.0)


@dataclass(frozen=True, eq=False)
class CellRows:
    """n rows with targets; cells by falling mass, id −1 and mass 0 past the last. A cell may have mass 0 too."""

    cell_ids: NDArray[np.int32]
    """[n, K]."""
    masses: NDArray[np.float64]
    """[n, K]."""
    unmapped: NDArray[np.float64]
    """[n]."""
    control: NDArray[np.float64]
    """[n]."""
    complete: NDArray[np.bool_]
    """[n], whether the columns hold every cell that has mass."""

    def moved(self, moves: Moves, known: KnownCells) -> CellRows:
        """The rows after `moves`; a cell that a move creates carries its base mass from `known` too."""
        moves = moves.summed()
        to_cell = moves.cells != RESIDUAL
        unmapped = self.unmapped.copy()
        unmapped[moves.owners[~to_cell]] += moves.deltas[~to_cell]
        owners, cells, deltas = moves.owners[to_cell], moves.cells[to_cell], moves.deltas[to_cell]
        hits = self.cell_ids[owners] == cells[:, None]
        is_there = hits.any(1)
        masses = self.masses.copy()
        masses[owners[is_there], hits[is_there].argmax(1)] += deltas[is_there]
        created = owners[~is_there], cells[~is_there]
        rows = replace(self, masses=masses, unmapped=np.clip(unmapped, 0.0, 1.0))
        return rows._with_cells(*created, deltas[~is_there] + known.find(*created))._sorted(np.unique(moves.owners))

    def _with_cells(self, owners: NDArray[np.int64], cells: NDArray[np.int64], masses: NDArray[np.float64]) -> CellRows:
        """Put new cells (by row) into columns behind the others."""
        counts = np.bincount(owners, minlength=len(self.masses))
        places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        width = ((0, 0), (0, int(counts.max(initial=0))))
        wide_ids, wide_masses = np.pad(self.cell_ids, width, constant_values=-1), np.pad(self.masses, width)
        wide_ids[owners, self.masses.shape[1] + places] = cells
        wide_masses[owners, self.masses.shape[1] + places] = masses
        return replace(self, cell_ids=wide_ids, masses=wide_masses)

    def _sorted(self, owners: NDArray[np.int64]) -> CellRows:
        """Bring the cells of the rows `owners` back into falling order; a mass outside [0, 1] is rounding."""
        masses, cell_ids = np.clip(self.masses, 0.0, 1.0), self.cell_ids.copy()
        order = np.argsort(-masses[owners], axis=1, kind="stable")
        masses[owners] = np.take_along_axis(masses[owners], order, 1)
        cell_ids[owners] = np.take_along_axis(cell_ids[owners], order, 1)
        return replace(self, cell_ids=cell_ids, masses=masses)


@dataclass(frozen=True, eq=False)
class TruncatedRows:
    """Ragged rows after truncation."""

    counts: NDArray[np.int64]
    """[n], cells of each row."""
    cell_ids: NDArray[np.int32]
    """[C]."""
    masses: NDArray[np.float64]
    """[C]."""
    truncated: NDArray[np.float64]
    """[n], mass of the cells that were dropped."""
    emitted_masses: NDArray[np.float64]
    """[n]."""


def truncate(
    rows: CellRows,
    emitted_ids: NDArray[np.int32],
    emitted_masses: NDArray[np.float64],
    *,
    top_k: int,
    mass: float,
) -> TruncatedRows:
    """Keep the largest cells until `top_k` or `mass` is met, and the emitted token's always (spec §6).

    `emitted_ids` [n] are canonical; `emitted_masses` [n] count where the emitted cell is not among the columns (one
    that moves left without mass is).
    """
    is_emitted = rows.cell_ids == emitted_ids[:, None]
    has_mass = rows.masses > 0
    covered_before = np.cumsum(rows.masses, 1) - rows.masses
    within = (np.arange(rows.masses.shape[1]) < top_k) & ((covered_before < mass) | (mass >= 1.0))
    is_there = is_emitted.any(1)
    cell_ids = np.column_stack([rows.cell_ids, emitted_ids])
    masses = np.column_stack([rows.masses, emitted_masses])
    keep = np.column_stack([has_mass & within | is_emitted, ~is_there])
    kept = np.where(keep, masses, 0.0).sum(1)
    drops = ~rows.complete | (has_mass & ~keep[:, :-1]).any(1)
    truncated = np.where(drops, np.maximum(1.0 - rows.unmapped - rows.control - kept, 0.0), 0.0)
    in_place = np.where(is_emitted, rows.masses, 0.0).sum(1)
    return TruncatedRows(
        keep.sum(1), cell_ids[keep], masses[keep], truncated, np.where(is_there, in_place, emitted_masses)
    )
