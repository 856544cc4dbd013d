"""The device pass by itself: bad logits, number types, empty slices, exactness of ratios far apart."""

import numpy as np
import pytest
import torch

from support.target_problems import problem_plan, problem_tables, random_problem
from tokbridge.errors import InternalError, NonFiniteLogitsError
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets import marginal
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

OPTIONS = ScoringOptions("greedy", "realized", 8, 1.0)


@pytest.fixture
def case():
    problem = random_problem(7, "greedy")
    tables = problem_tables(problem, "greedy")
    plan = problem_plan(problem, tables, OPTIONS)
    logits = torch.randn(plan.num_positions, tables.teacher.size, generator=torch.Generator().manual_seed(1))
    return plan, tables.on_device("cpu"), logits


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_their_position(case, bad):
    plan, tables, logits = case
    start = plan.num_positions - 1
    logits[-1, 3] = bad
    with pytest.raises(NonFiniteLogitsError) as caught:
        marginalize(logits[start:].clone(), plan.slice(start, plan.num_positions), tables)
    assert caught.value.details["position"] == start


def test_a_position_without_any_mass_is_an_error(case):
    plan, tables, logits = case
    logits[0] = -torch.inf
    with pytest.raises(NonFiniteLogitsError):
        marginalize(logits, plan.slice(0, plan.num_positions), tables)


def test_minus_infinity_is_probability_zero(case):
    plan, tables, logits = case
    logits[:, plan.stop_ids] = -torch.inf
    result = marginalize(logits, plan.slice(0, plan.num_positions), tables)
    assert result.stop_log_prob == -np.inf
    assert np.isfinite(result.block.cell_masses).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_number_types_are_computed_in_float32_and_left_alone(case, dtype):
    plan, tables, logits = case
    given = logits.to(dtype)
    before = given.clone()
    result = marginalize(given, plan.slice(0, plan.num_positions), tables)
    reference = marginalize(given.float(), plan.slice(0, plan.num_positions), tables)
    assert torch.equal(given, before)
    assert np.allclose(result.realized_log_probs, reference.realized_log_probs, atol=1e-6)
    assert np.allclose(result.block.cell_masses, reference.block.cell_masses, atol=1e-7)


def test_the_same_input_gives_the_same_bits(case):
    plan, tables, logits = case
    first, second = (marginalize(logits.clone(), plan.slice(0, plan.num_positions), tables) for _ in range(2))
    assert first.block.cell_masses.tobytes() == second.block.cell_masses.tobytes()
    assert first.block.cell_ids.tobytes() == second.block.cell_ids.tobytes()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("modes", [("greedy", "realized"), ("bpe", "lookahead")])
def test_a_chunk_that_is_reduced_in_parts_gives_the_same(modes, rows, seed, monkeypatch):
    problem = random_problem(seed, modes[0])
    tables = problem_tables(problem, modes[0])
    plan = problem_plan(problem, tables, ScoringOptions(*modes, 8, 1.0))
    logits = torch.randn(plan.num_positions, tables.teacher.size, generator=torch.Generator().manual_seed(seed))
    for start in (0, plan.num_positions // 2):
        plan_slice = plan.slice(start, plan.num_positions)
        monkeypatch.setattr(marginal, "_CPU_BYTES", 1 << 30)
        whole = marginalize(logits[start:].clone(), plan_slice, tables.on_device("cpu"))
        monkeypatch.setattr(marginal, "_CPU_BYTES", 4 * rows * tables.teacher.size)
        parts = marginalize(logits[start:].clone(), plan_slice, tables.on_device("cpu"))
        assert (parts.start, parts.stop) == (whole.start, whole.stop)
        assert parts.stop_log_prob == whole.stop_log_prob
        for name in ("realized_log_probs", "query_numbers", "query_log_masses", "top_ids", "top_probs"):
            np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-6)
        order, wanted = np.argsort(parts.block.rows), np.argsort(whole.block.rows)
        for name in ("rows", "cell_ids", "cell_masses", "unmapped", "control", "unresolved", "head_log_probs"):
            left, right = getattr(parts.block, name)[order], getattr(whole.block, name)[wanted]
            np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-9)
        order, wanted = np.argsort(parts.block.support_numbers), np.argsort(whole.block.support_numbers)
        np.testing.assert_array_equal(parts.block.support_numbers[order], whole.block.support_numbers[wanted])
        np.testing.assert_allclose(parts.block.support_masses[order], whole.block.support_masses[wanted], rtol=1e-6)


def test_realized_log_probs_are_log_softmax(case):
    plan, tables, logits = case
    expected = torch.log_softmax(logits.double(), -1)[range(len(plan.teacher_ids)), plan.teacher_ids]
    result = marginalize(logits.clone(), plan.slice(0, plan.num_positions), tables)
    assert np.allclose(result.realized_log_probs, expected.numpy(), atol=1e-6)


def test_a_stop_mass_below_float32_keeps_its_logarithm(case):
    plan, tables, logits = case
    logits[-1, plan.stop_ids] = -300.0
    result = marginalize(logits.clone(), plan.slice(0, plan.num_positions), tables)
    expected = torch.log_softmax(logits[-1].double(), -1)[plan.stop_ids].logsumexp(0)
    assert result.stop_log_prob == pytest.approx(float(expected), abs=1e-4)


def test_logits_of_another_shape_are_refused(case):
    plan, tables, logits = case
    with pytest.raises(InternalError):
        marginalize(logits[:, :-1], plan.slice(0, plan.num_positions), tables)


@pytest.fixture
def one_sided():
    """A plan of "ab" and 2000 teacher tokens of each kind: they begin with a, have no route, are stop or control."""
    numbers = range(2000)
    kinds = [[b"a%d" % i for i in numbers], [b"z%d" % i for i in numbers], [None for _ in numbers]]
    tokens = [token for kind in (*kinds, kinds[2]) for token in kind]
    teacher, student = ByteVocabulary((*tokens, b"ab", b"c")), ByteVocabulary((b"a", b"b", b"c", b"bc", None))
    tables = compile_pair(teacher, student, "greedy", student_encoder=None, cache_folder=None)
    plan = build_plan(
        tables,
        Segmentation(np.array([8000, 8001], np.int32), np.array([0, 2, 3]), np.zeros(2, bool)),
        np.array([0, 3], np.int32),
        b"abc",
        teacher_stop_ids=range(4000, 6000),
        stop_id=4,
        turn_end_id=4,
        given_bytes=0,
        options=OPTIONS,
    )
    return plan, tables.on_device("cpu")


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("seed", range(8))
def test_no_probability_is_above_one(one_sided, kind, seed):
    plan, tables = one_sided
    logits = torch.full((3, tables.teacher_size), -torch.inf)
    logits[:, 2000 * kind : 2000 * (kind + 1)] = torch.randn(3, 2000, generator=torch.Generator().manual_seed(seed))
    result = marginalize(logits, plan.slice(0, 3), tables)
    block = result.block
    impossible = np.isnan(block.head_log_probs)
    assert not impossible[block.rows == 0].any()
    for shares in (block.cell_masses, block.support_masses, block.unmapped, block.control):
        assert (np.isnan(shares) | ((shares >= 0) & (shares <= 1))).all()
    totals = block.cell_masses.sum(1, dtype=float) + block.unmapped + block.control
    assert totals[~impossible] == pytest.approx(1.0, abs=1e-6)
    assert result.stop_log_prob is not None
    assert result.stop_log_prob <= 0
    assert np.exp(result.stop_log_prob) == pytest.approx(float(kind == 2), abs=1e-12)


@pytest.mark.parametrize("rest", [1e-12, 1e-9, 1e-7, 1e-5])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_confident_stop_leaves_over_is_exact(one_sided, seed, rest):
    plan, tables = one_sided
    generator = torch.Generator().manual_seed(seed)
    logits = torch.full((3, tables.teacher_size), float(np.log(rest)))
    logits[:, plan.stop_ids] = torch.randn(3, len(plan.stop_ids), generator=generator)
    exact = logits[-1].double().softmax(-1)
    exact[plan.stop_ids] = 0.0
    stop_log_prob = marginalize(logits, plan.slice(0, 3), tables).stop_log_prob
    assert stop_log_prob is not None
    assert -np.expm1(stop_log_prob) == pytest.approx(float(exact.sum()), rel=1e-3)
