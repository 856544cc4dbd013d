"""Lookahead (spec §5b): resolve the realized branch of every row with the teacher distributions that follow it.

Vectorised over rows, one depth after the other; strings are looked up in the pair map. Host side, on sparse rows,
before truncation.

Axes: F branches still open, T top tokens of a position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokbridge.modes import Routing
from tokbridge_teacher.routing.pair_tables import PairTables
from tokbridge_teacher.targets.answers import Answers
from tokbridge_teacher.targets.cell_rows import Moves
from tokbridge_teacher.targets.plan import ResponsePlan
from tokbridge_teacher.targets.planning import MAX_LOOKAHEAD_TOKENS
from tokbridge_teacher.targets.row_block import RowBlock


@dataclass(frozen=True, eq=False)
class _Branches:
    """Realized strings a whose mass may still move on."""

    owners: NDArray[np.int64]
    """[F], row of the batch."""
    strings: list[bytes]
    """[F], a."""
    cells: NDArray[np.int32]
    """[F], φ(a), −1: unmapped."""
    masses: NDArray[np.float64]
    """[F], m."""
    positions: NDArray[np.int64]
    """[F], the teacher position that continues a."""

    def where(self, mask: NDArray[np.bool_]) -> _Branches:
        return _Branches(
            self.owners[mask],
            [string for string, kept in zip(self.strings, mask.tolist(), strict=True) if kept],
            self.cells[mask],
            self.masses[mask],
            self.positions[mask],
        )


class Lookahead:
    """Makes the moves of one response's rows."""

    def __init__(self, plan: ResponsePlan, tables: PairTables, answers: Answers) -> None:
        self._plan = plan
        self._tables = tables
        self._answers = answers
        self.tail = 0.0
        """Mass that could have moved on and was not looked at, summed over the rows done."""

    def moves(self, block: RowBlock) -> Moves:
        """Moves of mass from φ(a) to φ(a ⊕ w') for the rows of `block`, whose positions have all been read."""
        parts: list[Moves] = []
        branches, depth = self._heads(block), 1
        while len(branches.strings) and (depth < MAX_LOOKAHEAD_TOKENS or self._plan.options.routing == Routing.GREEDY):
            moves, branches = self._step(branches)
            parts.append(moves)
            depth += 1
        return Moves.join(parts)

    def _heads(self, block: RowBlock) -> _Branches:
        """The realized teacher token of every row, as the first string of its branch."""
        strings = [self._plan.head_bytes[row] for row in block.rows.tolist()]
        cells, settled = self._tables.strings.look_up(strings)
        positions = self._plan.head_positions[block.rows] + 1
        branches = _Branches(np.arange(len(strings)), strings, cells, np.exp(block.head_log_probs), positions)
        return branches.where(~settled)

    def _step(self, branches: _Branches) -> tuple[Moves, _Branches]:
        """Continue every branch by one teacher token: what moves, and the realized branches that stay open."""
        ids, masses = self._continuations(branches)
        looked_at = (masses > self._plan.options.lookahead_floor) & (self._tables.teacher.lengths[ids] >= 0)
        parents, columns = np.nonzero(looked_at)
        token_bytes = self._tables.teacher.token_bytes
        chosen = ids[parents, columns]
        strings = [
            branches.strings[parent] + (token_bytes[token] or b"")
            for parent, token in zip(parents.tolist(), chosen.tolist(), strict=True)
        ]
        cells, settled = self._tables.strings.look_up(strings)
        moved = masses[parents, columns]
        stays = np.where(self._tables.teacher.lengths[ids] < 0, masses, 0.0).sum()
        self.tail += max(float(branches.masses.sum() - stays - moved.sum()), 0.0)
        from_cells = branches.cells[parents]
        differs = from_cells != cells
        owners = branches.owners[parents]
        moves = Moves(
            np.tile(owners[differs], 2),
            np.concatenate([from_cells[differs], cells[differs]]).astype(np.int64),
            np.concatenate([-moved[differs], moved[differs]]),
        )
        goes_on = (
            (columns == ids.shape[1] - 1) & ~settled & (branches.positions[parents] < len(self._answers.log_probs))
        )
        following = _Branches(owners, strings, cells, moved, branches.positions[parents] + 1)
        return moves, following.where(goes_on)

    def _continuations(self, branches: _Branches) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Teacher ids that follow each branch and the mass each carries, the realized one last: [F, T + 1] both."""
        positions = branches.positions
        ids = self._answers.top_ids[positions]
        probs = self._answers.top_probs[positions].astype(np.float64)
        is_content = positions < len(self._answers.log_probs)
        place = np.where(is_content, positions, 0)
        padded_ids = np.append(self._plan.teacher_ids, 0)
        realized = np.where(is_content, padded_ids[place], -1)
        log_probs = np.append(self._answers.log_probs, -np.inf)[np.where(is_content, positions, -1)]
        probs[ids == realized[:, None]] = 0.0
        ids = np.column_stack([ids, np.maximum(realized, 0)]).astype(np.int32)
        return ids, np.column_stack([probs, np.exp(log_probs)]) * branches.masses[:, None]
