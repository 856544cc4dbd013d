"""Run the target builder over files of cases with known answers, and say how far its rows are from the right ones.

Knows the builder as a whole, from a plan to rows, on the CPU; how a file is written is `conformance_cases.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tokbridge.modes import Routing, Spanning
from tokbridge.targets import RowCase, RowFlag, TargetRows
from tokbridge_teacher.offline.conformance_cases import Case, CasePair, ExpectedRow, read_cases
from tokbridge_teacher.routing.pair_tables import PairTables, compile_pair
from tokbridge_teacher.segmentation import ContentTokenizer, Segmentation
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import MAX_TOP_K, ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

TOLERANCE = 1e-6


@dataclass(frozen=True)
class CaseResult:
    """How far the rows of one case in one spanning mode are from the right ones."""

    name: str
    largest_difference: float
    """Over all cells and residuals; infinite where a row's case or its whitespace mark differs."""
    row: int
    """The row of the largest difference."""

    @property
    def passed(self) -> bool:
        """Whether every value is within the tolerance."""
        return self.largest_difference <= TOLERANCE


def check_file(path: Path) -> Iterator[CaseResult]:
    """Results of every case of a file, in both spanning modes.

    Raises:
        InvalidDataError: the file is not in one of the two formats.
    """
    for pair in read_cases(path):
        tables = pair_tables(pair)
        for case in pair.cases:
            for spanning, expected in case.rows.items():
                rows = target_rows(case, tables, spanning)
                yield _compare(f"{case.name} {spanning}", rows, expected)


def pair_tables(pair: CasePair) -> PairTables:
    """Routing tables of a pair of a file: `bpe` where it comes with a tokenizer."""
    if pair.student_tokenizer is None:
        return compile_pair(pair.teacher, pair.student, Routing.GREEDY, student_encoder=None, cache_folder=None)
    encoder = ContentTokenizer(pair.student_tokenizer, pair.student)
    return compile_pair(pair.teacher, pair.student, Routing.BPE, student_encoder=encoder, cache_folder=None)


def target_rows(case: Case, tables: PairTables, spanning: Spanning) -> TargetRows:
    """All rows of a case, untruncated, every token of every distribution looked at."""
    options = ScoringOptions(
        tables.routing, spanning, top_k=MAX_TOP_K, mass=1.0, lookahead_tokens=tables.teacher.size, lookahead_floor=0.0
    )
    boundaries = np.concatenate([[0], np.cumsum(tables.teacher.lengths[case.teacher_ids], dtype=np.int64)])
    plan = build_plan(
        tables,
        Segmentation(case.teacher_ids, boundaries, np.zeros(len(case.teacher_ids), np.bool_)),
        case.student_ids,
        tables.teacher.content_of(case.teacher_ids),
        teacher_stop_ids=case.teacher_stop_ids,
        stop_id=case.stop_id,
        turn_end_id=case.turn_end_id,
        given_bytes=0,
        options=options,
        oracle=True,
    )
    logits = torch.as_tensor(case.log_probs)
    assembler = RowAssembler(plan, tables)
    rows = assembler.add(marginalize(logits.clone(), plan.slice(0, plan.num_positions), tables.on_device("cpu")))
    assembler.finish()
    return rows


def _compare(name: str, rows: TargetRows, expected: Sequence[ExpectedRow]) -> CaseResult:
    if rows.num_rows != len(expected):
        return CaseResult(name, math.inf, min(rows.num_rows, len(expected)))
    differences = [_row_difference(rows, row, right) for row, right in enumerate(expected)]
    worst = int(np.argmax(differences)) if differences else 0
    return CaseResult(name, max(differences, default=0.0), worst)


def _row_difference(rows: TargetRows, row: int, expected: ExpectedRow) -> float:
    is_whitespace = bool(rows.flags[row] & RowFlag.WHITESPACE)
    if RowCase(rows.cases[row]) != expected.case or is_whitespace != expected.is_whitespace:
        return math.inf
    cells = slice(rows.row_offsets[row], rows.row_offsets[row + 1])
    target = dict(zip(rows.cell_ids[cells].tolist(), np.exp(rows.cell_log_probs[cells]).tolist(), strict=True))
    right = expected.target
    differences = [abs(target.get(token, 0.0) - right.get(token, 0.0)) for token in target.keys() | right.keys()]
    return max([abs(float(rows.residual[row]) - expected.residual), *differences])
