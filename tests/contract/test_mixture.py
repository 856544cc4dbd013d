"""Mixtures of rows, against dense distributions mixed by hand in float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.dense_mixture import dense_rows, mixed_by_hand, parts_of_one_response, stop_row
from support.random_rows import random_rows
from tokbridge.errors import InvalidDataError
from tokbridge.mixture import mix_rows
from tokbridge.targets import RowCase, RowFlag, TargetRows

VOCABULARY_SIZE = 60
"""Small, so that most cells of a row are cells of the others too."""

seeds = st.integers(0, 2**32 - 1)
weights_of_teachers = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=4)


def make_parts(seed, num_teachers, num_rows=12):
    return parts_of_one_response(np.random.default_rng(seed), num_teachers, num_rows, VOCABULARY_SIZE)


def assert_alike(rows, expected, rtol=3e-6):
    """Rows against dense rows: the same cells, masses within float32 logarithms."""
    for i, (actual, wanted) in enumerate(zip(dense_rows(rows, VOCABULARY_SIZE), expected, strict=True)):
        assert actual.has_target == wanted.has_target, i
        assert actual.named == wanted.named, i
        np.testing.assert_allclose(actual.masses, wanted.masses, rtol=rtol, atol=1e-30)
        np.testing.assert_allclose(actual.residuals, wanted.residuals, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(actual.emitted, wanted.emitted, rtol=rtol, atol=1e-30)


def assert_well_formed(rows):
    np.testing.assert_allclose(rows.row_mass(), rows.has_target(), atol=1e-6)
    np.testing.assert_array_equal(np.isnan(rows.emitted_log_prob), ~rows.has_target())
    assert (rows.cell_log_probs <= 0).all()
    for start, end in zip(rows.row_offsets, rows.row_offsets[1:], strict=False):
        assert (np.diff(rows.cell_log_probs[start:end][np.isfinite(rows.cell_log_probs[start:end])]) <= 0).all()
        assert len(set(rows.cell_ids[start:end].tolist())) == end - start
    for name, array in vars(rows).items():
        if name != "first_row":
            assert array.dtype == getattr(TargetRows.empty(), name).dtype, name


@given(seeds, weights_of_teachers)
def test_a_mixture_is_the_weighted_sum_of_the_distributions(seed, weights):
    parts = make_parts(seed, len(weights))
    mixture = mix_rows(parts, weights)
    by_row = [[weight] * parts[0].num_rows for weight in weights]
    assert_alike(mixture.rows, mixed_by_hand([dense_rows(rows, VOCABULARY_SIZE) for rows in parts], by_row))
    assert_well_formed(mixture.rows)
    np.testing.assert_allclose(mixture.shares_TR.sum(0), mixture.rows.has_target(), atol=1e-12)


@given(seeds, st.integers(2, 3))
def test_weights_may_differ_from_row_to_row(seed, num_teachers):
    parts = make_parts(seed, num_teachers)
    weights_TR = np.random.default_rng(seed).choice([0.0, 0.1, 1.0, 7.0], (num_teachers, parts[0].num_rows))
    weights_TR[-1] += 0.5
    expected = mixed_by_hand([dense_rows(rows, VOCABULARY_SIZE) for rows in parts], weights_TR.tolist())
    assert_alike(mix_rows(parts, [*weights_TR]).rows, expected)


@given(seeds, weights_of_teachers)
def test_a_teacher_mixed_with_itself_is_that_teacher(seed, weights):
    (rows,) = make_parts(seed, 1)
    mixed = mix_rows([rows] * len(weights), weights).rows
    assert_alike(mixed, dense_rows(rows, VOCABULARY_SIZE))
    np.testing.assert_array_equal(mixed.cases, rows.cases)
    np.testing.assert_array_equal(mixed.flags, rows.flags)
    np.testing.assert_allclose(mixed.emitted_log_prob, rows.emitted_log_prob, rtol=1e-6, atol=1e-12)


@given(seeds, st.integers(2, 4), st.data())
def test_weight_one_among_weights_zero_gives_that_teacher_to_the_bit(seed, num_teachers, data):
    parts = make_parts(seed, num_teachers)
    chosen = data.draw(st.integers(0, num_teachers - 1))
    mixture = mix_rows(parts, [float(t == chosen) for t in range(num_teachers)])
    expected = parts[chosen]
    for name in ("cases", "flags", "emitted_log_prob", "residual_unmapped", "residual_control", "residual_truncated"):
        np.testing.assert_array_equal(getattr(mixture.rows, name), getattr(expected, name), err_msg=name)
    for rows in (mixture.rows, expected):
        assert rows.row_offsets.tolist() == expected.row_offsets.tolist()
    assert cells_by_row(mixture.rows) == cells_by_row(expected)


@given(seeds, weights_of_teachers, st.randoms(use_true_random=False))
def test_the_order_of_teachers_does_not_matter(seed, weights, random):
    parts = make_parts(seed, len(weights))
    order = random.sample(range(len(parts)), len(parts))
    mixed = mix_rows(parts, weights).rows
    shuffled = mix_rows([parts[t] for t in order], [weights[t] for t in order]).rows
    assert_alike(shuffled, dense_rows(mixed, VOCABULARY_SIZE), rtol=1e-5)
    np.testing.assert_array_equal(shuffled.cases, mixed.cases)
    np.testing.assert_array_equal(shuffled.flags, mixed.flags)


@given(seeds, st.tuples(*[st.floats(1e-2, 1e2)] * 3))
def test_mixing_two_and_then_the_third_is_mixing_all_three(seed, weights):
    """Where one of the two has no target, the pair weighs what the other does: weights are those of living rows."""
    parts = make_parts(seed, 3)
    pair = mix_rows(parts[:2], weights[:2])
    weight_of_pair = sum(
        np.where(rows.has_target(), weight, 0.0) for rows, weight in zip(parts[:2], weights[:2], strict=True)
    )
    nested = mix_rows([pair.rows, parts[2]], [weight_of_pair, weights[2]]).rows
    # Logarithms are rounded to float32 twice.
    assert_alike(nested, dense_rows(mix_rows(parts, weights).rows, VOCABULARY_SIZE), rtol=1e-5)


@given(seeds, weights_of_teachers, st.floats(1e-3, 1e3))
def test_only_the_ratio_of_weights_counts(seed, weights, factor):
    parts = make_parts(seed, len(weights))
    scaled = mix_rows(parts, [weight * factor for weight in weights]).rows
    assert_alike(scaled, dense_rows(mix_rows(parts, weights).rows, VOCABULARY_SIZE), rtol=1e-5)


@given(seeds, weights_of_teachers)
def test_truncated_rows_mix_to_within_what_they_truncated(seed, weights):
    """A cell lies at most the mixed truncated mass below the mixture of the rows before truncation."""
    rng = np.random.default_rng(seed)
    full = rng.dirichlet(np.full(VOCABULARY_SIZE, 0.3), len(weights))
    parts = [truncated_row(masses, int(rng.integers(1, 20))) for masses in full]
    mixed = mix_rows(parts, weights).rows
    (actual,) = dense_rows(mixed, VOCABULARY_SIZE)
    exact = np.average(full, axis=0, weights=weights)
    kept = np.array(sorted(actual.named))
    assert (actual.masses[kept] <= exact[kept] + 1e-6).all()
    assert (actual.masses[kept] >= exact[kept] - mixed.residual_truncated[0] - 1e-6).all()


def test_a_row_that_one_teacher_lacks_is_the_others_and_is_counted():
    aligned, excluded = one_row(RowCase.ALIGNED, [5, 6], [0.75, 0.25]), one_row(RowCase.EXCLUDED, [], [])
    mixture = mix_rows([excluded, aligned, one_row(RowCase.GIVEN, [], [])], [1.0, 3.0, 9.0])
    assert cells_by_row(mixture.rows) == cells_by_row(aligned)
    assert mixture.rows.cases.tolist() == [RowCase.ALIGNED]
    assert mixture.shares_TR[:, 0].tolist() == [0.0, 1.0, 0.0]
    assert mixture.num_partial == 1


def test_a_row_that_nobody_has_stays_without_target():
    mixture = mix_rows([one_row(RowCase.GIVEN, [], []), one_row(RowCase.EXCLUDED, [], [])], [1.0, 1.0])
    assert mixture.rows.cases.tolist() == [RowCase.EXCLUDED]
    assert mixture.num_partial == 0
    assert len(mixture.rows.cell_ids) == 0
    assert np.isnan(mixture.rows.emitted_log_prob).all()


def test_the_largest_share_names_the_case_and_all_who_contribute_set_flags():
    chain = one_row(RowCase.SPANNING, [1], [1.0], RowFlag.CHAIN)
    plain = one_row(RowCase.INTERIOR, [2], [1.0], RowFlag.NON_CANONICAL)
    unheard = one_row(RowCase.EXCLUDED, [], [], RowFlag.WHITESPACE)
    both = RowFlag.CHAIN | RowFlag.NON_CANONICAL
    for weights, case in (([2.0, 1.0, 5.0], RowCase.SPANNING), ([1.0, 1.0, 5.0], RowCase.INTERIOR)):
        rows = mix_rows([chain, plain, unheard], weights).rows
        assert (rows.cases[0], rows.flags[0]) == (case, both)


def test_stop_rows_keep_one_cell():
    rows = mix_rows([stop_row(3, 0, 0.9), stop_row(3, 0, 0.1)], [1.0, 3.0]).rows
    assert rows.cell_ids.tolist() == [3]
    assert np.exp(rows.cell_log_probs) == pytest.approx([0.3])
    assert rows.residual_control == pytest.approx([0.7])
    assert np.exp(rows.emitted_log_prob) == pytest.approx([0.3])


def test_masses_too_small_for_a_float32_probability_keep_their_logarithm():
    parts = [one_row(RowCase.ALIGNED, [1, 2], [1.0, 0.0]), one_row(RowCase.ALIGNED, [1, 2], [1.0, 0.0])]
    tiny = [replace(rows, cell_log_probs=np.array([0.0, -200.0], np.float32)) for rows in parts]
    assert mix_rows(tiny, [1.0, 1.0]).rows.cell_log_probs == pytest.approx([0.0, -200.0], abs=1e-4)


@pytest.mark.parametrize(
    "others",
    [
        random_rows(np.random.default_rng(0), 2),
        random_rows(np.random.default_rng(0), 1, first_row=1),
        stop_row(1, 0, 0.5),
    ],
    ids=["another number", "another place", "a stop"],
)
def test_rows_of_different_responses_are_refused(others):
    rows = one_row(RowCase.ALIGNED, [1], [1.0])
    with pytest.raises(InvalidDataError, match="not of one response"):
        mix_rows([rows, others], [1.0, 1.0])


def test_different_stop_tokens_are_refused():
    with pytest.raises(InvalidDataError, match="stop"):
        mix_rows([stop_row(1, 0, 0.5), stop_row(2, 0, 0.5)], [1.0, 1.0])


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, np.nan], [np.inf, 1.0], [1e308, 1e308], [0.0, 0.0], [1.0], []])
def test_impossible_weights_are_refused(weights):
    rows = one_row(RowCase.ALIGNED, [1], [1.0])
    with pytest.raises(InvalidDataError):
        mix_rows([rows, rows], weights)


def test_nothing_cannot_be_mixed():
    with pytest.raises(InvalidDataError):
        mix_rows([], [])


def one_row(case, ids, masses, flags=RowFlag(0)):  # noqa: B008
    with np.errstate(divide="ignore"):
        log_masses = np.log(np.array(masses, np.float32))
    return TargetRows(
        first_row=0,
        cases=np.array([case], np.uint8),
        flags=np.array([flags], np.uint8),
        row_offsets=np.array([0, len(ids)]),
        cell_ids=np.array(ids, np.int32),
        cell_log_probs=log_masses,
        residual_unmapped=np.zeros(1, np.float32),
        residual_control=np.zeros(1, np.float32),
        residual_truncated=np.zeros(1, np.float32),
        emitted_log_prob=log_masses[:1] if case.has_target else np.array([np.nan], np.float32),
    )


def truncated_row(masses, count):
    """The largest cells of a distribution, the rest as truncated residual."""
    ids = np.argsort(-masses)[:count]
    row = one_row(RowCase.ALIGNED, ids, masses[ids])
    return replace(row, residual_truncated=np.array([1 - masses[ids].sum()], np.float32).clip(min=0))


def cells_by_row(rows):
    bounds = zip(rows.row_offsets, rows.row_offsets[1:], strict=False)
    return [dict(zip(rows.cell_ids[a:b].tolist(), rows.cell_log_probs[a:b].tolist(), strict=True)) for a, b in bounds]
