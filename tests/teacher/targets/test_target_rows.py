"""Rows of the builder against the slow twin, over random problems, modes, truncations and chunk boundaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.brute_force import TwinProblem, truncated_row
from support.brute_force import rows as twin_rows
from support.target_problems import OddEncoder, built_rows, odd_phi, problem_tables, random_problem
from tokbridge.targets import RowCase, RowFlag
from tokbridge.vocabulary import ByteVocabulary
from tokbridge.wire import decode_rows, encode_rows
from tokbridge_teacher.targets.options import ScoringOptions

MODES = [("greedy", "realized"), ("bpe", "realized"), ("bpe", "lookahead"), ("greedy", "lookahead")]
TOLERANCE = 1e-6


def options_of(routing, spanning, top_k=1000, mass=1.0):
    return ScoringOptions(routing, spanning, top_k, mass, lookahead_tokens=1000, lookahead_floor=0.0)


def check_row(rows, index, expected):
    assert RowCase(rows.cases[index]).name.lower() == expected.case
    cells = slice(rows.row_offsets[index], rows.row_offsets[index + 1])
    got = dict(zip(rows.cell_ids[cells].tolist(), np.exp(rows.cell_log_probs[cells]).tolist(), strict=True))
    assert len(got) == cells.stop - cells.start, "a cell stands twice in a row"
    for cell in got | expected.cells:
        assert got.get(cell, 0.0) == pytest.approx(expected.cells.get(cell, 0.0), abs=TOLERANCE)
    assert rows.residual_unmapped[index] == pytest.approx(expected.unmapped, abs=TOLERANCE)
    assert rows.residual_control[index] == pytest.approx(expected.control, abs=TOLERANCE)
    assert rows.residual_truncated[index] == pytest.approx(expected.truncated, abs=TOLERANCE)
    if expected.emitted is None:
        assert np.isnan(rows.emitted_log_prob[index])
    else:
        assert np.exp(rows.emitted_log_prob[index]) == pytest.approx(expected.emitted, abs=TOLERANCE)


@pytest.mark.parametrize(("routing", "spanning"), MODES)
@settings(max_examples=150)
@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_rows_equal_the_twin_whatever_the_chunks(routing, spanning, seed, cuts):
    problem = random_problem(seed, routing)
    rows = built_rows(problem, problem_tables(problem, routing), options_of(routing, spanning), cuts)
    expected = twin_rows(problem, spanning)
    assert rows.num_rows == len(expected)
    for index, row in enumerate(expected):
        check_row(rows, index, row)
    assert rows.row_mass()[rows.has_target()] == pytest.approx(1.0, abs=TOLERANCE)
    assert not rows.row_mass()[~rows.has_target()].any()


@pytest.mark.parametrize(("routing", "spanning"), MODES)
@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    cuts=st.lists(st.integers(0, 40), max_size=2),
    top_k=st.integers(1, 5),
    mass=st.sampled_from([1.0, 0.99, 0.7, 0.2]),
)
def test_truncated_rows_equal_the_twin(routing, spanning, seed, cuts, top_k, mass):
    problem = random_problem(seed, routing)
    rows = built_rows(problem, problem_tables(problem, routing), options_of(routing, spanning, top_k, mass), cuts)
    for index, row in enumerate(twin_rows(problem, spanning)):
        emitted_id = problem.student_ids[index] if index < len(problem.student_ids) else -1
        check_row(rows, index, truncated_row(row, emitted_id, top_k, mass))
    assert rows.row_mass()[rows.has_target()] == pytest.approx(1.0, abs=TOLERANCE)
    counts = np.diff(rows.row_offsets)
    assert (counts <= top_k + 1).all()


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), top_k=st.integers(1, 5))
def test_cells_fall_and_the_flags_say_how_a_row_was_made(seed, top_k):
    problem = random_problem(seed, "greedy")
    rows = built_rows(problem, problem_tables(problem, "greedy"), options_of("greedy", "realized", top_k))
    for index in range(rows.num_rows):
        cells = rows.cell_log_probs[rows.row_offsets[index] : rows.row_offsets[index + 1]]
        assert (cells[1:] <= cells[:-1]).all()
        is_chained = bool(rows.flags[index] & RowFlag.CHAIN)
        assert is_chained == (rows.cases[index] == RowCase.SPANNING)


def cut_problem(student, teacher, student_ids, teacher_ids, q):
    """A response under `bpe` in which the student emitted a token that its encoder would not have."""
    encoder = OddEncoder(ByteVocabulary(tuple(student)))
    return TwinProblem(
        teacher=teacher,
        student=student,
        teacher_ids=teacher_ids,
        student_ids=student_ids,
        q=q,
        stop_set=frozenset([teacher.index(None)]),
        stop_id=student.index(None),
        turn_end_id=student.index(None),
        given_bytes=0,
        phi=odd_phi(student, encoder),
        settled=encoder.is_settled,
        emitted_only=True,
        max_tokens=4,
    )


@pytest.mark.parametrize("top_k", [1, 1000])
@pytest.mark.parametrize("rest", [0.0, 1e-12, 1e-9, 1e-7, 0.25])
@pytest.mark.parametrize("mass", [0.3, 0.5002062, 1.0])
def test_an_emitted_cell_that_lookahead_empties_stays_in_the_row_once(mass, rest, top_k):
    q = [[mass, 0.0, 1 - mass, 0.0], [rest, 1 - rest, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    problem = cut_problem([b"t", b"h", b"e", b"the", b"x", None], [b"t", b"he", b"x", None], [0, 1, 2], [0, 1], q)
    rows = built_rows(problem, problem_tables(problem, "bpe"), options_of("bpe", "lookahead", top_k))
    for index, row in enumerate(twin_rows(problem, "lookahead")):
        check_row(rows, index, truncated_row(row, [*problem.student_ids, -1][index], top_k, 1.0))
    assert rows.row_mass() == pytest.approx(1.0, abs=TOLERANCE)
    assert decode_rows(encode_rows(rows), vocabulary_size=6).num_rows == rows.num_rows


@pytest.mark.parametrize("realized", [0, 63, 64, 99])
def test_the_cell_that_the_realized_branch_moves_to_keeps_its_base_mass_whatever_its_rank(realized):
    pieces = [bytes([0x80 + number]) + b"z" for number in range(100)]
    words = [b"t" + piece for piece in pieces]
    student, teacher = [*words, *pieces, b"t", None], [*words, *pieces, b"t", None]
    q = np.zeros((3, len(teacher)))
    q[0, :100], q[0, 200] = (0.5 + 1e-3 * (np.arange(100) != realized)) / 100, 0.5
    q[1, 100 + realized] = q[2, 201] = 1.0
    q /= q.sum(1, keepdims=True)
    problem = cut_problem(student, teacher, [200, 100 + realized], [200, 100 + realized], q.tolist())
    options = ScoringOptions("bpe", "lookahead", 1, 1.0, lookahead_tokens=2, lookahead_floor=0.0)
    rows = built_rows(problem, problem_tables(problem, "bpe"), options)
    expected = twin_rows(problem, "lookahead")[0]
    assert expected.cells[realized] == pytest.approx(0.505, abs=1e-3)
    check_row(rows, 0, truncated_row(expected, 200, 1, 1.0))
