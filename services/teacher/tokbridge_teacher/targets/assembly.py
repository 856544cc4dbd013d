"""Chunk results in, target rows out: chains, lookahead, duplicates, truncation, and the release of rows in order.

A row is released as soon as the last teacher position that it reads is there. Knows the plan and the tables; neither
tensors nor protocols.

Axes: R rows of the response, n rows with cells among those released at once, K cells.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InternalError
from tokbridge.targets import RowCase, RowFlag, TargetRows, offsets_of
from tokbridge_teacher.routing.pair_tables import PairTables
from tokbridge_teacher.targets.answers import Answers
from tokbridge_teacher.targets.cell_rows import CellRows, KnownCells, Moves, TruncatedRows, truncate
from tokbridge_teacher.targets.chain import chain_masses
from tokbridge_teacher.targets.device_plan import Int64Array
from tokbridge_teacher.targets.lookahead import Lookahead
from tokbridge_teacher.targets.marginal import ChunkResult
from tokbridge_teacher.targets.plan import ResponsePlan
from tokbridge_teacher.targets.row_block import RowBlock, split_at


class RowAssembler:
    """Assembles the rows of one response; chunks must come in order, without gaps."""

    def __init__(self, plan: ResponsePlan, tables: PairTables) -> None:
        self._plan = plan
        self._tables = tables
        self._answers = Answers(plan)
        self._lookahead = Lookahead(plan, tables, self._answers) if plan.options.looks_ahead else None
        self._chain_rows = np.array([chain.row for chain in plan.chains], np.int64)
        self._reads_up_to = np.maximum.accumulate(plan.last_positions)
        self._pending: list[RowBlock] = []
        self._next_row = 0
        self._cases: Counter[RowCase] = Counter()
        self.unresolved_mass = 0.0
        """Mass on teacher tokens that some student token strictly extends, summed over the content rows released: the
        part of a row for which another segmentation by the teacher could matter (spec §5).
        """

    def add(self, result: ChunkResult) -> TargetRows:
        """Take the next chunk and give the rows that can be made now, maybe none.

        Raises:
            InternalError: the chunk does not follow the one before.
        """
        self._answers.add(result)
        self._pending.append(result.block)
        stop = int(np.searchsorted(self._reads_up_to, self._answers.num_read))
        if stop == self._next_row:
            return TargetRows.empty(self._next_row)
        rows = self._release(self._next_row, stop)
        self._next_row = stop
        self._cases.update(RowCase(case) for case in rows.cases.tolist())
        return rows

    def finish(self) -> None:
        """Check that the response is complete.

        Raises:
            InternalError: positions or rows are missing.
        """
        if self._answers.num_read != self._plan.num_positions or self._next_row != self._plan.num_rows:
            raise InternalError(f"{self._next_row} of {self._plan.num_rows} rows were made")

    @property
    def content_log_prob(self) -> float:
        """Σ ln q of the realized teacher content tokens (0 for none)."""
        return float(self._answers.log_probs.sum())

    @property
    def stop_log_prob(self) -> float:
        """ln of the teacher's stop mass after the content."""
        return self._answers.stop_log_prob

    @property
    def case_counts(self) -> dict[str, int]:
        """Released rows by the name of their case, in lower case."""
        return {case.name.lower(): count for case, count in sorted(self._cases.items())}

    @property
    def lookahead_tail(self) -> float:
        """Mass of realized branches that `lookahead` left in place without looking, summed over the rows released."""
        return 0.0 if self._lookahead is None else self._lookahead.tail

    def _release(self, start: int, stop: int) -> TargetRows:
        block, rest = split_at(self._pending, stop)
        self._pending = [rest]
        cases = self._plan.cases[start:stop].copy()
        impossible = np.isnan(block.head_log_probs)  # no token that starts with r has mass: nothing to condition on
        cases[block.rows[impossible] - start] = RowCase.EXCLUDED
        block = block.take(np.flatnonzero(~impossible))
        self.unresolved_mass += float(block.unresolved.sum(dtype=np.float64))
        rows, chained = self._corrected(block)
        truncated = self._truncate(block.rows, rows)
        flags = self._plan.flags[start:stop].copy()
        flags[block.rows[chained] - start] |= np.uint8(RowFlag.CHAIN)
        return self._target_rows(start, cases, flags, block.rows, rows, truncated)

    def _corrected(self, block: RowBlock) -> tuple[CellRows, Int64Array]:
        """The rows of a block after chains or lookahead, and which of them those changed."""
        masses = block.cell_masses.astype(np.float64)
        complete = masses[:, -1] == 0
        rows = CellRows(block.cell_ids, masses, block.unmapped.astype(float), block.control.astype(float), complete)
        moves = self._chain_moves(block) if self._lookahead is None else self._lookahead.moves(block)
        if len(moves.owners):
            rows = rows.moved(moves, self._known_cells(block.rows))
        return rows, np.unique(moves.owners)

    def _chain_moves(self, block: RowBlock) -> Moves:
        """Candidates gain their telescoped masses, the head cell loses that of the shortest (spec §5)."""
        owners, cells, deltas = [], [], []
        first, last = np.searchsorted(self._chain_rows, _span(block.rows))
        for chain in self._plan.chains[first:last]:
            owner = int(np.searchsorted(block.rows, chain.row))
            if block.rows[owner] != chain.row:
                continue  # excluded: nothing to condition on
            masses = chain_masses(
                chain, block.head_log_probs[owner], self._answers.log_probs, self._answers.query_log_masses
            )
            owners += [owner] * (len(masses) + 1)
            cells += [chain.head_id, *(candidate.student_id for candidate in chain.candidates)]
            deltas += [-masses[0], *(masses - np.append(masses[1:], 0.0))]
        return Moves(np.asarray(owners, np.int64), np.asarray(cells, np.int64), np.asarray(deltas, np.float64))

    def _known_cells(self, rows: Int64Array) -> KnownCells:
        """The support of `rows` [n] with the base masses the device pass gave."""
        support = self._plan.support_rows
        first, last = np.searchsorted(support, _span(rows))
        present = np.isin(support[first:last], rows)
        return KnownCells(
            np.searchsorted(rows, support[first:last][present]),
            self._plan.support_cells[first:last][present].astype(np.int64),
            self._answers.support_masses[first:last][present].astype(np.float64),
        )

    def _truncate(self, row_numbers: Int64Array, rows: CellRows) -> TruncatedRows:
        """Truncate, then put real ids in place of the stop column and of the emitted token's canonical twin."""
        plan = self._plan
        emitted = plan.emitted_ids[row_numbers]
        canonical = self._tables.student.canonical_ids[emitted]
        base = self._answers.support_masses[plan.emitted_support[row_numbers]].astype(np.float64)
        limits = plan.options
        kept = truncate(rows, canonical, base, top_k=limits.top_k, mass=limits.mass)
        owners = np.repeat(np.arange(len(row_numbers)), kept.counts)
        ids = np.where(kept.cell_ids == canonical[owners], emitted[owners], kept.cell_ids)
        ids = np.where(ids == self._tables.student.size, plan.stop_cell_id, ids)
        return replace(kept, cell_ids=ids.astype(np.int32))

    def _target_rows(
        self,
        start: int,
        cases: NDArray[np.uint8],
        flags: NDArray[np.uint8],
        row_numbers: Int64Array,
        rows: CellRows,
        kept: TruncatedRows,
    ) -> TargetRows:
        """All released rows in order: those with cells (`row_numbers`), those without a target, the stop row if due."""
        places = row_numbers - start
        num_rows = len(cases)
        counts = np.zeros(num_rows, np.int64)
        unmapped, control, truncated = np.zeros((3, num_rows), np.float32)
        emitted = np.full(num_rows, np.nan, np.float32)
        counts[places] = kept.counts
        unmapped[places], control[places], truncated[places] = rows.unmapped, rows.control, kept.truncated
        cell_ids = kept.cell_ids
        with np.errstate(divide="ignore"):  # ln 0 = −inf is meant
            cell_log_probs = np.log(kept.masses)
            emitted[places] = np.log(kept.emitted_masses)
        if cases[-1] == RowCase.STOP:
            stop = self._answers.stop_log_prob
            counts[-1], control[-1], emitted[-1] = 1, -np.expm1(stop), stop
            cell_ids = np.append(cell_ids, np.int32(self._plan.stop_cell_id))
            cell_log_probs = np.append(cell_log_probs, stop)
        return TargetRows(
            first_row=start,
            cases=cases,
            flags=flags,
            row_offsets=offsets_of(counts),
            cell_ids=cell_ids,
            cell_log_probs=cell_log_probs.astype(np.float32),
            residual_unmapped=unmapped,
            residual_control=control,
            residual_truncated=truncated,
            emitted_log_prob=emitted,
        )


def _span(rows: Int64Array) -> tuple[int, int]:
    """First of ascending row numbers and one past the last; (0, 0) for none."""
    return (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
