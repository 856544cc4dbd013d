"""The host's side of the backend on vLLM, with an engine that answers when the test wants it to."""

import gc
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from support.backend_bench import Recorder
from support.stepwise_engine import StepwiseEngine
from support.target_problems import problem_plan, problem_tables, random_problem
from tokbridge.errors import InternalError, OverloadedError, SelfTestFailedError
from tokbridge_teacher.backends.base import run_to_end
from tokbridge_teacher.backends.vllm.backend import VllmBackend
from tokbridge_teacher.backends.vllm.engine_types import EngineStoppedError, ResponseRefusedError
from tokbridge_teacher.targets.options import ScoringOptions

PROBLEM = random_problem(5, "greedy")
TABLES = problem_tables(PROBLEM, "greedy")
PLAN = problem_plan(PROBLEM, TABLES, ScoringOptions("greedy", "realized", 8, 1.0))
LOGITS = torch.randn(PLAN.num_positions, TABLES.teacher.size, generator=torch.Generator().manual_seed(5))


class HeldEngine(StepwiseEngine):
    """Holds every answer back until it is let go."""

    def __init__(self) -> None:
        super().__init__(LOGITS, np.random.default_rng(0))
        self.held: list[tuple[Future[memoryview], Future[memoryview]]] = []

    def submit(self, token_ids: np.ndarray, extra: Mapping[str, Any], *, read_cache: bool) -> Future[memoryview]:
        answered, future = super().submit(token_ids, extra, read_cache=False), Future()
        self.held.append((future, answered))
        return future

    def let_go(self, number: int) -> None:
        future, answered = self.held[number]
        future.set_result(answered.result())

    def die(self) -> None:
        self.alive = False
        for future, _ in self.held:
            if not future.done():
                future.set_exception(EngineStoppedError())


@pytest.fixture
def engines():
    return [HeldEngine(), HeldEngine()]


@pytest.fixture
def backend(engines):
    waiting = iter(engines)
    return VllmBackend(lambda: next(waiting), "tiny")


def a_job(device_tables=None, cancel_after=None) -> Recorder:
    return Recorder(np.zeros(3, np.int32), PLAN, TABLES, device_tables or TABLES.on_device("cpu"), cancel_after)


def test_responses_end_in_the_order_in_which_they_are_ready(engines, backend):
    first, second = a_job(), a_job()
    steps = backend.steps([first.job, second.job])
    next(steps)
    engines[0].let_go(1)
    next(steps)
    assert (first.shared, second.shared) == (None, 0)
    engines[0].let_go(0)
    run_to_end(steps)
    assert first.shared == 0
    assert len(first.emitted_log_probs()) == PLAN.num_rows


def test_tables_are_sent_once_a_student_and_dropped_with_it(engines, backend):
    tables = TABLES.on_device("cpu")
    for number in range(2):
        steps = backend.steps([a_job(tables).job])
        next(steps)
        engines[0].let_go(number)
        run_to_end(steps)
    del steps
    assert engines[0].calls == ["tokbridge_put_tables"]
    del tables
    gc.collect()
    next(backend.steps([a_job().job]))
    assert engines[0].calls[1:] == ["tokbridge_drop_tables", "tokbridge_put_tables"]
    assert len(engines[0].tables) == 1


def test_an_engine_that_stops_fails_what_is_under_way_and_is_started_again_with_its_tables(engines, backend):
    tables = TABLES.on_device("cpu")
    lost = a_job(tables)
    steps = backend.steps([lost.job])
    next(steps)
    engines[0].die()
    with pytest.raises(OverloadedError) as caught:
        next(steps)
    assert caught.value.retryable
    again = a_job(tables)
    steps = backend.steps([again.job])
    next(steps)
    assert engines[1].calls == ["tokbridge_put_tables"]
    engines[1].let_go(0)
    run_to_end(steps)
    assert again.shared == 0


def test_a_cancelled_response_is_taken_out_of_the_engine(engines, backend):
    kept, gone, never = a_job(), a_job(), a_job(cancel_after=0)
    steps = backend.steps([kept.job, gone.job, never.job])
    next(steps)
    assert len(engines[0].held) == 2
    gone.cancel_after = 0
    next(steps)
    assert engines[0].held[1][0].cancelled()
    engines[0].let_go(0)
    run_to_end(steps)
    assert (kept.shared, gone.shared, gone.errors) == (0, None, [])


def test_steps_that_are_dropped_take_their_responses_out(engines, backend):
    steps = backend.steps([a_job().job, a_job().job])
    next(steps)
    steps.close()
    assert [future.cancelled() for future, _ in engines[0].held] == [True, True]


def test_a_response_that_the_engine_refuses_fails_alone(engines, backend):
    refused, other = a_job(), a_job()
    steps = backend.steps([refused.job, other.job])
    next(steps)
    engines[0].held[0][0].set_exception(ResponseRefusedError("too long"))
    engines[0].let_go(1)
    run_to_end(steps)
    assert [type(error) for error in refused.errors] == [InternalError]
    assert "too long" not in refused.errors[0].message
    assert other.shared == 0


def test_the_end_of_the_backend_is_that_of_the_engine(engines, backend):
    backend.close()
    assert not engines[0].alive


def test_an_engine_that_stops_in_the_self_test_fails_it(engines, backend):
    engines[0].die()
    with pytest.raises(SelfTestFailedError, match="log"):
        backend.self_test()
