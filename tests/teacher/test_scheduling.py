import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.teacher_jobs import Outcome, job
from tokbridge.errors import (
    InternalError,
    NonFiniteLogitsError,
    ShuttingDownError,
)
from tokbridge_teacher.backends.base import Backend, BackendLostError, ScoreJob, Steps
from tokbridge_teacher.scheduling import PassReport, Scheduler, SchedulerLimits, SchedulerState
from tokbridge_teacher.tickets import Ticket, select_batch

LIMITS = SchedulerLimits(batch_tokens=40)
WAIT_S = 10.0


class GatedBackend:
    """Runs a batch when the test opens the gate; remembers what it ran."""

    def __init__(self, work: Callable[[Sequence[ScoreJob]], None] | None = None) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[ScoreJob]] = []
        self._work = work

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        self.batches.append(list(jobs))
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self._work is not None:
            self._work(jobs)
        for each in jobs:
            if not each.cancelled():
                each.finish(0)
        yield from ()


def ignore() -> None:
    pass


@pytest.fixture
def backend():
    backend = GatedBackend()
    yield backend
    backend.gate.set()


def started(backend: GatedBackend, limits: SchedulerLimits = LIMITS) -> Scheduler:
    scheduler = Scheduler(cast(Backend, backend), limits)
    scheduler.start()
    return scheduler


def test_jobs_run_and_counters_return_to_zero(backend):
    scheduler = started(backend)
    outcomes = [Outcome() for _ in range(3)]
    for outcome in outcomes:
        scheduler.submit(job(10, outcome), ignore)
    assert backend.entered.wait(WAIT_S)
    state = scheduler.state()
    assert state.queued_requests + state.running_requests == 3
    assert state.queued_tokens + state.running_tokens == 30
    backend.gate.set()
    assert all(outcome.done.wait(WAIT_S) for outcome in outcomes)
    scheduler.stop(WAIT_S)
    assert scheduler.state() == SchedulerState(0, 0, 0, 0)


def test_cancelling_frees_the_place_in_the_queue_at_once(backend):
    scheduler = started(backend)
    scheduler.submit(job(10), ignore)
    assert backend.entered.wait(WAIT_S)
    waiting = [scheduler.submit(job(10), ignore) for _ in range(3)]
    scheduler.cancel(waiting[1])
    scheduler.submit(job(10), ignore)
    assert scheduler.state().queued_requests == 3
    backend.gate.set()
    scheduler.stop(WAIT_S)
    assert waiting[1].job not in [ran for batch in backend.batches for ran in batch]


def test_a_dead_entry_is_dropped_when_its_turn_comes(backend):
    scheduler = started(backend)
    scheduler.submit(job(10), ignore)
    assert backend.entered.wait(WAIT_S)
    gone = Outcome()
    scheduler.submit(job(10, gone), ignore)
    gone.closed = True
    backend.gate.set()
    scheduler.stop(WAIT_S)
    assert len(backend.batches) == 1


def test_a_fault_of_a_batch_reaches_its_jobs_and_the_worker_goes_on():
    def break_once(jobs: Sequence[ScoreJob]) -> None:
        if len(backend.batches) == 1:
            raise RuntimeError("secret cause")

    backend = GatedBackend(break_once)
    backend.gate.set()
    scheduler = started(backend)
    first, second = Outcome(), Outcome()
    scheduler.submit(job(10, first), ignore)
    assert first.done.wait(WAIT_S)
    scheduler.submit(job(10, second), ignore)
    assert second.done.wait(WAIT_S)
    scheduler.stop(WAIT_S)
    assert [type(error) for error in first.errors] == [InternalError]
    assert "secret" not in first.errors[0].message
    assert second.errors == []


def test_a_typed_error_of_a_batch_stays_typed():
    def refuse(jobs: Sequence[ScoreJob]) -> None:
        raise NonFiniteLogitsError("NaN", position=3)

    backend = GatedBackend(refuse)
    backend.gate.set()
    scheduler = started(backend)
    outcome = Outcome()
    scheduler.submit(job(10, outcome), ignore)
    assert outcome.done.wait(WAIT_S)
    scheduler.stop(WAIT_S)
    assert type(outcome.errors[0]) is NonFiniteLogitsError


def test_a_lost_backend_ends_all_and_whoever_waited_may_go_elsewhere(backend):
    """Those of its pass may be what broke it: they are told not to try again."""

    def break_for_good(jobs: Sequence[ScoreJob]) -> None:
        raise BackendLostError("the device is gone")

    backend._work = break_for_good
    lost = threading.Event()
    scheduler = Scheduler(cast(Backend, backend), LIMITS, lost=lost.set)
    scheduler.start()
    broken, waiting, long = Outcome(), Outcome(), Outcome()
    scheduler.submit(job(30, broken), ignore)
    assert backend.entered.wait(WAIT_S)
    scheduler.submit(job(30, waiting), ignore)
    scheduler.submit(job(60, long), ignore)
    backend.gate.set()
    assert all(outcome.done.wait(WAIT_S) for outcome in (broken, waiting, long))
    assert lost.wait(WAIT_S)
    assert [type(error) for error in broken.errors] == [BackendLostError]
    assert broken.errors[0].code == "internal"
    assert not broken.errors[0].retryable
    assert [type(error) for error in waiting.errors + long.errors] == [ShuttingDownError, ShuttingDownError]
    assert len(backend.batches) == 1
    assert scheduler.state() == SchedulerState(0, 0, 0, 0)
    with pytest.raises(ShuttingDownError):
        scheduler.submit(job(10), ignore)
    scheduler.stop(WAIT_S)


def test_a_fault_outside_a_pass_is_no_silent_end_of_the_worker(backend):
    def fault() -> None:
        raise RuntimeError("not expected")

    lost = threading.Event()
    scheduler = Scheduler(cast(Backend, backend), LIMITS, lost=lost.set)
    scheduler.start()
    outcome = Outcome()
    scheduler.submit(job(10, outcome), fault)
    assert outcome.done.wait(WAIT_S)
    assert lost.wait(WAIT_S)
    assert [type(error) for error in outcome.errors] == [ShuttingDownError]


def test_every_pass_is_reported_and_a_failed_one_before_its_callers_hear_of_it():
    reports: list[PassReport] = []

    def break_the_second(jobs: Sequence[ScoreJob]) -> None:
        if len(backend.batches) == 2:
            raise MemoryError

    backend = GatedBackend(break_the_second)
    backend.gate.set()
    scheduler = Scheduler(cast(Backend, backend), LIMITS, report=reports.append)
    scheduler.start()
    outcomes = [Outcome(), Outcome()]
    for outcome in outcomes:
        scheduler.submit(job(10, outcome), ignore)
        assert outcome.done.wait(WAIT_S)
    assert [type(report.fault) for report in reports] == [type(None), InternalError]
    scheduler.stop(WAIT_S)


def test_stop_fails_what_did_not_finish_in_time_and_takes_no_more(backend):
    scheduler = started(backend)
    running, waiting = Outcome(), Outcome()
    scheduler.submit(job(10, running), ignore)
    assert backend.entered.wait(WAIT_S)
    scheduler.submit(job(10, waiting), ignore)
    stopping = threading.Thread(target=scheduler.stop, args=(0.05,))
    stopping.start()
    assert waiting.done.wait(WAIT_S)
    assert running.done.wait(WAIT_S)
    backend.gate.set()
    stopping.join(WAIT_S)
    assert [type(error) for error in running.errors + waiting.errors] == [ShuttingDownError, ShuttingDownError]
    with pytest.raises(ShuttingDownError):
        scheduler.submit(job(10), ignore)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2)), max_size=12),
    budget=st.integers(1, 80),
)
def test_a_batch_keeps_the_budget_takes_the_oldest_and_prefers_its_prompt(sizes, budget):
    queue = [Ticket(job(tokens, prompt=prompt), ignore) for tokens, prompt in sizes]
    batch = select_batch(queue, budget)
    assert batch[:1] == queue[:1]
    assert len(batch) <= 1 or sum(ticket.num_tokens for ticket in batch) <= budget
    prompts = [int(ticket.job.prompt_ids[0]) for ticket in batch]
    of_another = [prompt != prompts[0] for prompt in prompts]
    assert of_another == sorted(of_another)
    for prompt in set(prompts):
        places = [queue.index(ticket) for ticket in batch if int(ticket.job.prompt_ids[0]) == prompt]
        assert places == sorted(places)
