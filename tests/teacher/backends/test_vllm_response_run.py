"""A response through an engine that cuts, caches and preempts as it likes: the rows are those of one plain pass."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.stepwise_engine import StepwiseEngine
from support.target_problems import problem_plan, problem_tables, random_problem
from tokbridge.errors import InternalError, NonFiniteLogitsError
from tokbridge_teacher.backends.vllm import response_state
from tokbridge_teacher.backends.vllm.coverage import missing_stop
from tokbridge_teacher.backends.vllm.plan_codec import encode_tables
from tokbridge_teacher.backends.vllm.response_run import ResponseRun, Scored
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import ScoringOptions

OPTIONS = ScoringOptions("greedy", "realized", 8, 1.0)


class Case:
    """A random response, its logits, and what one pass over them gives."""

    def __init__(self, seed: int, prompt_tokens: int = 5) -> None:
        problem = random_problem(seed, "greedy")
        self.tables = problem_tables(problem, "greedy")
        self.plan = problem_plan(problem, self.tables, OPTIONS)
        self.prompt_ids = np.zeros(prompt_tokens, np.int32)
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(self.plan.num_positions, self.tables.teacher.size, generator=generator)

    def run(self, engine: StepwiseEngine, **options) -> ResponseRun:
        arrays = self.tables.on_device("cpu").arrays

        def send() -> None:
            engine.call_workers("tokbridge_put_tables", "pair", encode_tables(arrays))

        send()
        return ResponseRun(engine, self.prompt_ids, self.plan.device_plan, "pair", send, **options)

    def engine(self, seed: int = 0, **options) -> StepwiseEngine:
        return StepwiseEngine(self.logits, np.random.default_rng(seed), **options)

    def rows(self, chunks):
        assembler = RowAssembler(self.plan, self.tables)
        parts = [assembler.add(chunk) for chunk in chunks]
        assembler.finish()
        return [part for part in parts if part.num_rows]

    def plain_chunks(self):
        plan_slice = self.plan.slice(0, self.plan.num_positions)
        return [marginalize(self.logits.clone(), plan_slice, self.tables.on_device("cpu"))]


def outcome_of(run: ResponseRun):
    while (outcome := run.take()) is None:
        pass
    return outcome


def flat(rows, name):
    return np.concatenate([np.asarray(getattr(part, name)) for part in rows])


@given(seed=st.integers(0, 300), schedule=st.integers(0, 10_000), prompt_tokens=st.integers(1, 9))
def test_rows_do_not_depend_on_steps_cache_hits_or_preemptions(seed, schedule, prompt_tokens):
    case = Case(seed, prompt_tokens)
    engine = case.engine(schedule)
    outcome = outcome_of(case.run(engine))
    assert isinstance(outcome, Scored)
    got, expected = case.rows(outcome.chunks), case.rows(case.plain_chunks())
    for name in ("cases", "flags", "cell_ids"):
        assert flat(got, name).tolist() == flat(expected, name).tolist()
    for name in ("cell_log_probs", "residual_unmapped", "residual_control", "emitted_log_prob"):
        np.testing.assert_allclose(flat(got, name), flat(expected, name), atol=1e-6)
    assert 0 <= outcome.shared_prompt_tokens < prompt_tokens
    assert len(engine.log) <= 2
    assert all(not read_cache for _, read_cache in engine.log[1:])


def test_the_cache_is_read_only_where_it_may_be():
    case = Case(3)
    engine = case.engine()
    outcome_of(case.run(engine, read_cache=False))
    assert engine.log == [(len(case.prompt_ids) + len(case.plan.teacher_ids), False)]


def test_a_second_pass_stops_where_the_first_began():
    case = Case(3, prompt_tokens=2)
    passes = [log for seed in range(40) for log in [case.engine(seed)] if outcome_of(case.run(log))]
    second = [engine.log[1][0] for engine in passes if len(engine.log) == 2]
    assert second
    assert all(2 <= tokens < 2 + len(case.plan.teacher_ids) for tokens in second)


def test_tables_that_a_worker_lost_are_sent_again_once():
    case = Case(5)
    assert isinstance(outcome_of(case.run(case.engine(forgets_tables=1))), Scored)
    assert isinstance(outcome_of(case.run(case.engine(forgets_tables=2))), InternalError)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_their_position(bad):
    case = Case(5)
    case.logits[1, 0] = bad
    outcome = outcome_of(case.run(case.engine(), read_cache=False))
    assert isinstance(outcome, NonFiniteLogitsError)
    assert outcome.details["position"] == 1


def test_a_fault_of_the_pass_is_the_fault_of_its_response(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    case = Case(5)
    monkeypatch.setattr(response_state, "marginalize", broken)
    assert isinstance(outcome_of(case.run(case.engine(), read_cache=False)), InternalError)


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_missing_positions_against_a_list(present):
    spans = [(place, place + 1) for place, there in enumerate(present) if there]
    absent = [place for place, there in enumerate(present) if not there]
    assert missing_stop(spans, len(present)) == (absent[-1] + 1 if absent else 0)
