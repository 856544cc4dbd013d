"""Several passes under way in one lane, for a backend that batches across them."""

import itertools
from collections.abc import Sequence
from typing import cast

import pytest

from support.teacher_jobs import Outcome, job
from tokbridge.errors import InternalError, ShuttingDownError
from tokbridge_teacher.backends.base import Backend, ScoreJob, Steps
from tokbridge_teacher.scheduling import Scheduler, SchedulerLimits

BUDGET = 10
WAIT_S = 10.0


class CountingBackend:
    """Takes `steps` steps for a pass, and remembers how many passes were under way at each."""

    def __init__(self, num_steps: int = 4) -> None:
        self.num_steps = num_steps
        self.under_way: list[int] = []
        self.order: list[int] = []
        self._open = 0

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        self._open += 1
        for step in range(self.num_steps):
            if step:
                yield
            self.under_way.append(self._open)
            self.order.append(id(jobs[0]))
        self._open -= 1
        for each in jobs:
            each.finish(0)


def run(backend, sizes: Sequence[int], passes: int) -> list[Outcome]:
    seconds = itertools.count()  # every step takes one
    limits = SchedulerLimits(BUDGET, passes=passes)
    scheduler = Scheduler(cast(Backend, backend), limits, clock=lambda: float(next(seconds)))
    outcomes = [Outcome() for _ in sizes]
    for size, outcome in zip(sizes, outcomes, strict=True):
        scheduler.submit(job(size, outcome), lambda: None)
    scheduler.start()
    assert all(outcome.done.wait(WAIT_S) for outcome in outcomes)
    scheduler.stop(WAIT_S)
    assert scheduler.state().running_requests == scheduler.state().queued_requests == 0
    return outcomes


@pytest.mark.parametrize("passes", [1, 3])
def test_as_many_passes_as_allowed_take_turns(passes):
    backend = CountingBackend()
    run(backend, [BUDGET] * 6, passes)
    assert max(backend.under_way) == passes
    first = backend.order[: 2 * passes]
    assert [first.count(each) for each in first] == [2] * len(first)


def test_long_responses_have_as_many_of_their_own():
    backend = CountingBackend()
    run(backend, [BUDGET, BUDGET, 3 * BUDGET, 3 * BUDGET, 3 * BUDGET], passes=2)
    assert max(backend.under_way) == 4


def test_a_pass_that_fails_leaves_the_others_alone():
    class Failing(CountingBackend):
        def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
            if jobs[0].num_tokens == BUDGET - 1:
                yield
                raise RuntimeError
            yield from super().steps(jobs)

    outcomes = run(Failing(), [BUDGET, BUDGET - 1, BUDGET], passes=3)
    assert [len(outcome.errors) for outcome in outcomes] == [0, 1, 0]
    assert isinstance(outcomes[1].errors[0], InternalError)


def test_a_stop_fails_every_pass_under_way():
    class Endless(CountingBackend):
        def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
            while True:
                yield

    scheduler = Scheduler(cast(Backend, Endless()), SchedulerLimits(BUDGET, passes=2))
    outcomes = [Outcome() for _ in range(3)]
    for outcome in outcomes:
        scheduler.submit(job(BUDGET, outcome), lambda: None)
    scheduler.start()
    scheduler.stop(0.05)
    assert all(isinstance(outcome.errors[0], ShuttingDownError) for outcome in outcomes)
