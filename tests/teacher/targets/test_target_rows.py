"""Rows of the builder against the slow twin, over random problems, modes, truncations and chunk boundaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.brute_force import rows as twin_rows
from support.brute_force import truncated_row
from support.target_problems import built_rows, problem_tables, random_problem
from tokbridge.targets import RowCase, RowFlag
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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=150, deadline=None)
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


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), top_k=st.integers(1, 5))
def test_cells_fall_and_the_flags_say_how_a_row_was_made(seed, top_k):
    problem = random_problem(seed, "greedy")
    rows = built_rows(problem, problem_tables(problem, "greedy"), options_of("greedy", "realized", top_k))
    for index in range(rows.num_rows):
        cells = rows.cell_log_probs[rows.row_offsets[index] : rows.row_offsets[index + 1]]
        assert (cells[1:] <= cells[:-1]).all()
        is_chained = bool(rows.flags[index] & RowFlag.CHAIN)
        assert is_chained == (rows.cases[index] == RowCase.SPANNING)
