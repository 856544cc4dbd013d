"""Release of rows, order of chunks, sums, and what the builder refuses."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch

from support import brute_force
from support.target_problems import problem_plan, problem_tables, random_problem
from tokbridge.errors import (
    EmptyResponseError,
    InternalError,
    InvalidRequestError,
    TokensDoNotSpellResponseError,
    UnsupportedModeError,
)
from tokbridge.modes import Spanning
from tokbridge.targets import RowCase
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.chain import Chain
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

TEACHER = ByteVocabulary((b"a", b"b", b"ab", None))
STUDENT = ByteVocabulary((b"a", b"b", b"ba", None))
OPTIONS = ScoringOptions("greedy", "realized", 8, 1.0)


def plan_of(teacher_ids, student_ids, stop_id=3, content=None, options=OPTIONS):
    tables = compile_pair(TEACHER, STUDENT, "greedy", student_encoder=None, cache_folder=None)
    boundaries = np.concatenate([[0], np.cumsum(TEACHER.lengths[teacher_ids], dtype=np.int64)]).astype(np.int64)
    segmentation = Segmentation(np.array(teacher_ids, np.int32), boundaries, np.zeros(len(teacher_ids), bool))
    plan = build_plan(
        tables,
        segmentation,
        np.array(student_ids, np.int32),
        TEACHER.content_of(teacher_ids) if content is None else content,
        teacher_stop_ids=[3],
        stop_id=stop_id,
        turn_end_id=3,
        given_bytes=0,
        options=options,
    )
    return plan, tables


def results_of(plan, tables, cuts):
    logits = torch.randn(plan.num_positions, TEACHER.size, generator=torch.Generator().manual_seed(0))
    device_tables = tables.on_device("cpu")
    return [marginalize(logits[a:b].clone(), plan.slice(a, b), device_tables) for a, b in pairwise(cuts)]


def test_a_row_waits_for_the_last_position_its_chain_reads():
    plan, tables = plan_of([0, 1, 0, 0], [0, 2, 0])  # a·b·a·a against a·ba·a
    assembler = RowAssembler(plan, tables)
    released = [assembler.add(result) for result in results_of(plan, tables, range(6))]
    assert [rows.num_rows for rows in released] == [1, 0, 1, 1, 1]
    assert [rows.first_row for rows in released] == [0, 1, 1, 2, 3]
    assembler.finish()
    assert assembler.case_counts == {"aligned": 2, "spanning": 1, "stop": 1}


def test_a_chunk_looks_at_its_own_chains_only():
    """Else a long response of many chains takes time that grows with the square of its length."""

    class Chains(tuple[Chain, ...]):
        looked_at = 0

        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            self.looked_at += len(found)
            return found

    plan, tables = plan_of([0] + [1, 0] * 20, [0] + [2] * 20)  # a·b·a·b·a… against a·ba·ba…
    chains = Chains(plan.chains)
    plan = replace(plan, chains=chains)
    assembler = RowAssembler(plan, tables)
    for result in results_of(plan, tables, range(plan.num_positions + 1)):
        assembler.add(result)
    assembler.finish()
    assert chains.looked_at == len(chains) == 20


def test_sums_over_the_response():
    plan, tables = plan_of([0, 2], [0, 0, 1])
    (result,) = results_of(plan, tables, [0, 3])
    assembler = RowAssembler(plan, tables)
    rows = assembler.add(result)
    logits = torch.randn(3, TEACHER.size, generator=torch.Generator().manual_seed(0)).double().log_softmax(-1)
    assert assembler.content_log_prob == pytest.approx(float(logits[0, 0] + logits[1, 2]), abs=1e-6)
    assert assembler.stop_log_prob == pytest.approx(float(logits[2, 3]), abs=1e-6)
    assert rows.cases[-1] == RowCase.STOP
    assert rows.cell_ids[-1] == 3
    assert rows.emitted_log_prob[-1] == pytest.approx(float(logits[2, 3]), abs=1e-6)


def test_chunks_out_of_order_and_missing_ones_are_noticed():
    plan, tables = plan_of([0, 1], [0, 1])
    first, second = results_of(plan, tables, [0, 1, 3])
    assembler = RowAssembler(plan, tables)
    with pytest.raises(InternalError):
        assembler.add(second)
    assembler.add(first)
    with pytest.raises(InternalError):
        assembler.finish()
    with pytest.raises(InternalError):
        assembler.add(first)


def test_a_response_that_is_only_its_stop_token_is_one_stop_row():
    plan, tables = plan_of([], [])
    (result,) = results_of(plan, tables, [0, 1])
    rows = RowAssembler(plan, tables).add(result)
    assert rows.cases.tolist() == [RowCase.STOP]
    assert rows.row_mass() == pytest.approx([1.0], abs=1e-6)


def test_an_empty_response_is_refused():
    with pytest.raises(EmptyResponseError):
        plan_of([], [], stop_id=None)


def test_ids_that_do_not_spell_the_content_are_refused():
    with pytest.raises(TokensDoNotSpellResponseError) as caught:
        plan_of([0, 1], [0, 0])
    assert caught.value.details["offset"] == 1


def test_a_segmentation_of_other_bytes_is_refused():
    with pytest.raises(InternalError):
        plan_of([0, 1], [0, 1, 0], content=b"aba")


def test_lookahead_under_greedy_is_refused():
    with pytest.raises(UnsupportedModeError):
        plan_of([0], [0], options=ScoringOptions("greedy", "lookahead", 8, 1.0))


def test_tables_of_another_routing_are_refused():
    with pytest.raises(UnsupportedModeError):
        plan_of([0], [0], options=ScoringOptions("bpe", "realized", 8, 1.0))


@pytest.mark.parametrize(("top_k", "mass"), [(0, 1.0), (70_000, 1.0), (8, 0.0), (8, 1.5)])
def test_limits_out_of_range_are_refused(top_k, mass):
    with pytest.raises(InvalidRequestError):
        ScoringOptions("greedy", "realized", top_k, mass)


def test_unknown_modes_are_refused():
    with pytest.raises(UnsupportedModeError):
        ScoringOptions(cast(Any, "nearest"), Spanning.REALIZED, 8, 1.0)


@pytest.mark.parametrize("seed", range(12))
def test_lookahead_moves_less_and_reports_more_tail_with_fewer_tokens(seed):
    problem = random_problem(seed, "bpe")
    tables = problem_tables(problem, "bpe")
    tails = []
    for count, floor in ((1000, 0.0), (3, 0.0), (3, 0.05)):
        options = ScoringOptions("bpe", "lookahead", 100, 1.0, lookahead_tokens=count, lookahead_floor=floor)
        plan = problem_plan(problem, tables, options)
        with np.errstate(divide="ignore"):
            logits = torch.as_tensor(np.log(np.asarray(problem.q)).astype(np.float32))
        assembler = RowAssembler(plan, tables)
        rows = assembler.add(marginalize(logits, plan.slice(0, plan.num_positions), tables.on_device("cpu")))
        assert rows.row_mass()[rows.has_target()] == pytest.approx(1.0, abs=1e-6)
        tails.append(assembler.lookahead_tail)
    assert tails[0] == pytest.approx(0.0, abs=1e-5)
    assert tails[0] <= tails[1] + 1e-6
    assert tails[1] <= tails[2] + 1e-6


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("routing", "spanning"), [("greedy", "realized"), ("bpe", "realized"), ("bpe", "lookahead")])
def test_unresolved_mass_is_that_of_teacher_tokens_a_student_token_extends(seed, routing, spanning):
    problem = random_problem(seed, routing)
    tables = problem_tables(problem, routing)
    plan = problem_plan(problem, tables, ScoringOptions(routing, spanning, 2, 0.5))
    with np.errstate(divide="ignore"):
        logits = torch.as_tensor(np.log(np.asarray(problem.q)).astype(np.float32))
    assembler = RowAssembler(plan, tables)
    for start, stop in pairwise(sorted({0, plan.num_positions // 2, plan.num_positions})):
        chunk = logits[start:stop].clone()
        assembler.add(marginalize(chunk, plan.slice(start, stop), tables.on_device("cpu")))
    expected = sum(row.unresolved for row in brute_force.rows(problem, spanning))
    assert assembler.unresolved_mass == pytest.approx(expected, abs=1e-5)
