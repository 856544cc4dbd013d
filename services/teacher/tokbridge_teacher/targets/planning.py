"""Build the plan of one response: alignment, routing and chains put together. Python loops run over interior and
spanning rows only; everything on the 1:1 path is array code.

Knows tables and segmentations; nothing of logits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokbridge.errors import EmptyResponseError, InternalError, UnsupportedModeError
from tokbridge.modes import Routing
from tokbridge.targets import RowCase
from tokbridge_teacher.routing.pair_tables import PairTables
from tokbridge_teacher.routing.router import UNMAPPED
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.alignment import Alignment, align
from tokbridge_teacher.targets.chain import Candidate, Chain, find_candidates
from tokbridge_teacher.targets.device_plan import Int64Array, PrefixQueries, RowGroup
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.plan import ResponsePlan

MAX_LOOKAHEAD_TOKENS = 4
"""Teacher tokens that a looked-ahead string holds at most (spec §5b)."""


def build_plan(
    tables: PairTables,
    teacher_segmentation: Segmentation,
    student_ids: NDArray[np.int32],
    content: bytes,
    *,
    teacher_stop_ids: Collection[int],
    stop_id: int | None,
    turn_end_id: int,
    given_bytes: int,
    options: ScoringOptions,
    oracle: bool = False,
) -> ResponsePlan:
    """Plan one response (spec §5).

    `student_ids` [N] are the sampled content ids; `stop_id` is the stop token that followed, None for a response cut
    at its cap, whose stop cell is then `turn_end_id`. `teacher_segmentation` covers `content[given_bytes:]`. `oracle`
    admits the combination of `greedy` and `lookahead`, which exists to be checked and not to be trained on.

    Raises:
        EmptyResponseError: neither content nor a stop token.
        TokenIdOutOfRangeError, TokensDoNotSpellResponseError: the ids are not the content.
        UnsupportedModeError: modes that the tables do not serve, or that do harm.
    """
    _check_modes(tables, options, oracle)
    if len(student_ids) == 0 and stop_id is None:
        raise EmptyResponseError("the response holds neither content nor a stop token")
    tables.student.check_spells(student_ids, content)
    if int(teacher_segmentation.boundaries[-1]) != len(content) - given_bytes:
        raise InternalError("the teacher's segmentation does not cover the content")
    student_ids = np.asarray(student_ids, np.int32)
    alignment = align(
        tables.student,
        student_ids,
        teacher_segmentation,
        given_bytes=given_bytes,
        none_excluded=options.looks_ahead,
    )
    builder = _PlanBuilder(tables, teacher_segmentation, alignment, student_ids, content[given_bytes:], options)
    return builder.build(np.asarray(sorted(teacher_stop_ids), np.int64), stop_id, turn_end_id)


def _check_modes(tables: PairTables, options: ScoringOptions, oracle: bool) -> None:
    if tables.routing != options.routing:
        raise UnsupportedModeError(f"tables for routing {tables.routing} cannot serve {options.routing}")
    if options.looks_ahead and options.routing == Routing.GREEDY and not oracle:
        raise UnsupportedModeError("lookahead needs routing bpe: with greedy it takes mass off the emitted token")


class _PlanBuilder:
    """The parts of one plan; each method makes one of them."""

    def __init__(
        self,
        tables: PairTables,
        segmentation: Segmentation,
        alignment: Alignment,
        student_ids: NDArray[np.int32],
        scored: bytes,
        options: ScoringOptions,
    ) -> None:
        self.tables = tables
        self.alignment = alignment
        self.student_ids = student_ids
        self.scored = scored
        self.options = options
        self.boundaries = np.asarray(segmentation.boundaries, np.int64)
        self.teacher_ids = np.asarray(segmentation.ids, np.int64)
        targeted = np.isin(alignment.cases, (RowCase.ALIGNED, RowCase.INTERIOR, RowCase.SPANNING))
        self.rows = np.flatnonzero(targeted)
        positions = alignment.positions[self.rows]
        inside = self.boundaries[positions] < alignment.starts[self.rows]
        self.base_rows, self.interior_rows = self.rows[~inside], self.rows[inside]
        self.interior_routes = tuple(tables.interior(self._prefix(row)) for row in self.interior_rows.tolist())
        self.interior_realized = self._realized_places()
        self.head_ids = self._head_ids()
        self.head_bytes = self._head_bytes() if options.looks_ahead else ()

    def build(self, stop_ids: Int64Array, stop_id: int | None, turn_end_id: int) -> ResponsePlan:
        """Put the plan together, the stop row last if there is one."""
        chains, queries = ((), _sorted_queries([])) if self.options.looks_ahead else self._chains()
        support_rows, support_cells = self._support(chains)
        base, interior = self._groups(support_rows, support_cells)
        stop_row = [] if stop_id is None else [stop_id]
        emitted_support = np.full(len(self.student_ids) + len(stop_row), -1, np.int64)
        emitted_support[self.rows] = np.searchsorted(support_rows, self.rows)
        return ResponsePlan(
            options=self.options,
            teacher_ids=self.teacher_ids,
            cases=np.append(self.alignment.cases, [RowCase.STOP] * len(stop_row)).astype(np.uint8),
            flags=np.append(self.alignment.flags, [0] * len(stop_row)).astype(np.uint8),
            emitted_ids=np.append(self.student_ids, stop_row).astype(np.int32),
            last_positions=np.append(self._last_positions(chains), [len(self.teacher_ids)] * len(stop_row)).astype(int),
            emitted_support=emitted_support,
            has_stop_row=stop_id is not None,
            stop_cell_id=turn_end_id if stop_id is None else stop_id,
            base=base,
            interior=interior,
            interior_routes=self.interior_routes,
            interior_realized=self.interior_realized,
            queries=queries,
            chains=chains,
            support_cells=support_cells,
            support_rows=support_rows,
            head_positions=self.alignment.positions,
            head_bytes=self.head_bytes,
            stop_ids=stop_ids,
            control_ids=np.setdiff1d(self.tables.byteless_ids, stop_ids),
            num_cells=min(self.options.num_cells, self.tables.student.size + 1),
        )

    def _prefix(self, row: int) -> bytes:
        """r: the realized bytes between the row's teacher boundary and its start."""
        start = int(self.alignment.starts[row])
        return self.scored[int(self.boundaries[self.alignment.positions[row]]) : start]

    def _realized_places(self) -> Int64Array:
        """Where each interior row's realized teacher token stands among the tokens that start with r: [I]."""
        realized_ids = self.teacher_ids[self.alignment.positions[self.interior_rows]]
        lows = np.array([routes.low for routes in self.interior_routes], np.int64)
        return self.tables.teacher_order.rank_by_id[realized_ids] - lows

    def _head_ids(self) -> NDArray[np.int32]:
        """φ_r(w_j) of each row, `UNMAPPED` too where a row has no target: [N]."""
        heads = np.full(len(self.student_ids), UNMAPPED, np.int32)
        positions = self.alignment.positions[self.base_rows]
        heads[self.base_rows] = self.tables.phi[self.teacher_ids[positions]]
        for row, routes, place in zip(self.interior_rows, self.interior_routes, self.interior_realized, strict=True):
            slot = routes.slots[place]
            heads[row] = routes.cells[slot] if slot < len(routes.cells) else UNMAPPED
        return heads

    def _head_bytes(self) -> tuple[bytes, ...]:
        """Bytes of w_j after r for each row, empty where a row has no target: [N]."""
        ends = self.boundaries[np.minimum(self.alignment.positions + 1, len(self.teacher_ids))]
        has_head = self.alignment.positions >= 0
        spans = zip(self.alignment.starts.tolist(), np.where(has_head, ends, 0).tolist(), strict=True)
        return tuple(self.scored[start:end] if end else b"" for start, end in spans)

    def _chains(self) -> tuple[tuple[Chain, ...], PrefixQueries]:
        """The chains of all spanning rows and the prefix masses they need."""
        chains: list[Chain] = []
        queries: list[tuple[int, int, int]] = []
        for row in np.flatnonzero(self.alignment.cases == RowCase.SPANNING).tolist():
            candidates = tuple(self._with_query(candidate, queries) for candidate in self._candidates(row))
            chains.append(Chain(row, int(self.alignment.positions[row]), int(self.head_ids[row]), candidates))
        return tuple(chains), _sorted_queries(queries)

    def _candidates(self, row: int) -> list[Candidate]:
        start, emitted_end = int(self.alignment.starts[row]), int(self.alignment.ends[row])
        first_end = int(self.boundaries[self.alignment.positions[row] + 1]) + 1
        last_end = min(start + self.tables.router.max_length, len(self.scored))
        only_emitted = self.options.routing == Routing.BPE
        ends = range(emitted_end, emitted_end + 1) if only_emitted else range(first_end, last_end + 1)
        return find_candidates(self.scored, start, ends, self.boundaries, self.tables.student.ids_by_bytes)

    def _with_query(self, candidate: Candidate, queries: list[tuple[int, int, int]]) -> Candidate:
        """Ask for π_k of the candidate's last bytes, unless it ends where teacher token k ends."""
        position = candidate.last_position
        if candidate.end == self.boundaries[position + 1]:
            return candidate
        low, high = self.tables.teacher_order.prefix_range(self.scored[int(self.boundaries[position]) : candidate.end])
        queries.append((position, low, high))
        return replace(candidate, query=len(queries) - 1)

    def _support(self, chains: tuple[Chain, ...]) -> tuple[Int64Array, NDArray[np.int32]]:
        """(row, cell) of every mass wanted whatever its rank, by row, a row's emitted token first."""
        emitted = self.tables.student.canonical_ids[self.student_ids[self.rows]]
        owners = [self.rows, *(np.full(len(chain.cells), chain.row) for chain in chains)]
        cells = [emitted, *(np.asarray(chain.cells, np.int32) for chain in chains)]
        if self.options.looks_ahead:
            reachable = self.tables.strings.reachable_cells([self.head_bytes[row] for row in self.rows.tolist()])
            owners.append(np.repeat(self.rows, [len(reached) for reached in reachable]))
            cells.extend(reachable)
            branch_rows, branch_cells = self._realized_branches()
            owners.append(branch_rows)
            cells.append(branch_cells)
        support_rows = np.concatenate(owners)
        order = np.argsort(support_rows, kind="stable")
        return support_rows[order], np.concatenate(cells)[order]

    def _realized_branches(self) -> tuple[Int64Array, NDArray[np.int32]]:
        """(row, cell) of φ(a), φ(a ⊕ w_{j+1}), … for every row: where `lookahead` takes mass and brings most of it."""
        rows, owners, cells = self.rows, [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
        for depth in range(1, MAX_LOOKAHEAD_TOKENS + 1):
            next_positions = self.alignment.positions[rows] + depth
            spans = zip(self.alignment.starts[rows].tolist(), self.boundaries[next_positions].tolist(), strict=True)
            found, settled = self.tables.strings.look_up([self.scored[start:end] for start, end in spans])
            owners.append(rows[found != UNMAPPED])
            cells.append(found[found != UNMAPPED])
            rows = rows[~settled & (next_positions < len(self.teacher_ids))]
        return np.concatenate(owners), np.concatenate(cells)

    def _groups(self, support_rows: Int64Array, support_cells: NDArray[np.int32]) -> tuple[RowGroup, RowGroup]:
        """Rows at teacher boundaries and rows inside teacher tokens, each with its support."""
        numbers = np.arange(len(support_rows))
        inside = np.isin(support_rows, self.interior_rows)
        base = self._group(self.base_rows, support_rows[~inside], support_cells[~inside], numbers[~inside])
        firsts = np.searchsorted(support_rows[inside], self.interior_rows)
        parts = np.split(support_cells[inside], firsts[1:])
        slots = [routes.slots_of(part) for routes, part in zip(self.interior_routes, parts, strict=False)]
        columns = np.concatenate([np.zeros(0, np.int64), *slots])
        return base, self._group(self.interior_rows, support_rows[inside], columns, numbers[inside])

    def _group(self, rows: Int64Array, support_rows: Int64Array, columns: ArrayLike, numbers: Int64Array) -> RowGroup:
        owners = np.searchsorted(rows, support_rows)
        return RowGroup(rows, self.alignment.positions[rows], owners, np.asarray(columns, np.int64), numbers)

    def _last_positions(self, chains: tuple[Chain, ...]) -> Int64Array:
        """The last teacher position that each row reads: [N], −1 without a target."""
        last = np.full(len(self.student_ids), -1, np.int64)
        last[self.rows] = self.alignment.positions[self.rows]
        if self.options.looks_ahead:
            reach = len(self.teacher_ids) if self.options.routing == Routing.GREEDY else MAX_LOOKAHEAD_TOKENS - 1
            last[self.rows] = np.minimum(last[self.rows] + reach, len(self.teacher_ids))
        for chain in chains:
            last[chain.row] = chain.last_position
        return last


def _sorted_queries(queries: list[tuple[int, int, int]]) -> PrefixQueries:
    """Queries (position, low, high) by position, each with its number in the given order."""
    table = np.asarray(queries, np.int64).reshape(-1, 3)
    order = np.argsort(table[:, 0], kind="stable")
    return PrefixQueries(table[order, 0], table[order, 1:], order)
