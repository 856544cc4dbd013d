"""Passes that take turns: what a long response costs the short ones, and the other way round, on a clock of steps."""

from collections.abc import Sequence
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from support.teacher_jobs import Outcome, job
from tokbridge_teacher.backends.base import Backend, ScoreJob, Steps
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.scheduling import Scheduler, SchedulerLimits
from tokbridge_teacher.turns import Lane, Turns

WAIT_S = 10.0
BUDGET = 40
STEP_TOKENS = 20


class SteppingBackend:
    """Works through a pass 20 tokens a step, a token a second; remembers every step, and how much was under way."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[tuple[ScoreJob, ...]] = []
        self.under_way: list[int] = []
        self._open_tokens = 0

    def clock(self) -> float:
        return self.now

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        tokens = sum(job.num_tokens for job in jobs)
        self._open_tokens += tokens
        for start in range(0, tokens, STEP_TOKENS):
            if start:
                yield
            self.under_way.append(self._open_tokens)
            self.log.append(tuple(jobs))
            self.now += min(STEP_TOKENS, tokens - start)
        self._open_tokens -= tokens
        for each in jobs:
            each.finish(0)


def run_all(tickets: Sequence[tuple[ScoreJob, Outcome, Caller]]) -> SteppingBackend:
    """Queue everything, then run it."""
    backend = SteppingBackend()
    scheduler = Scheduler(cast(Backend, backend), SchedulerLimits(batch_tokens=BUDGET), clock=backend.clock)
    for each, _, caller in tickets:
        scheduler.submit(each, lambda: None, caller)
    scheduler.start()
    assert all(outcome.done.wait(WAIT_S) for _, outcome, _ in tickets)
    scheduler.stop(WAIT_S)
    return backend


def one(tokens: int, caller: str = "a", prompt: int = 0) -> tuple[ScoreJob, Outcome, Caller]:
    outcome = Outcome()
    return job(tokens, outcome, prompt), outcome, Caller(caller)


def test_short_responses_do_not_wait_for_a_long_one():
    long, short = one(2000), [one(20, prompt=n) for n in range(6)]
    log = run_all([long, *short]).log
    last_short = max(log.index(batch) for batch in log if batch[0] is not long[0])
    long_steps_before = [batch for batch in log[:last_short] if batch[0] is long[0]]
    assert len(log) == 100 + 3 * 2
    assert len(long_steps_before) <= 1 + 3 * BUDGET // STEP_TOKENS


def test_a_stream_of_short_responses_does_not_starve_a_long_one():
    long, short = one(400), [one(BUDGET) for _ in range(100)]
    log = run_all([long, *short]).log
    last_long = max(place for place, batch in enumerate(log) if batch[0] is long[0])
    assert last_long <= 2 * 400 // STEP_TOKENS + 1


def test_another_callers_long_response_comes_before_the_rest_of_a_flood_of_long_ones():
    flood, other = [one(100, "flooder") for _ in range(10)], one(100, "other")
    log = run_all([*flood, other]).log
    order = [batch[0] for place, batch in enumerate(log) if place == 0 or log[place - 1] != batch]
    assert order.index(other[0]) <= 1


def test_a_flood_of_short_ones_does_not_starve_another_caller():
    flood, other = [one(20, "flooder") for _ in range(200)], [one(20, "other") for _ in range(10)]
    log = run_all([*flood, *other]).log
    last = max(place for place, batch in enumerate(log) if any(each[0] in batch for each in other))
    # Ten of each: as many steps as twenty take, and no more.
    assert last < 20 + BUDGET // STEP_TOKENS


def test_a_flood_of_long_ones_does_not_put_a_newcomer_behind_everybody_elses_backlog():
    backend = SteppingBackend()
    scheduler = Scheduler(cast(Backend, backend), SchedulerLimits(batch_tokens=BUDGET), clock=backend.clock)
    newcomer = one(BUDGET, "newcomer")
    waiting = [newcomer]

    def arrive() -> None:
        scheduler.submit(newcomer[0], lambda: None, newcomer[2])

    # Alone in its lane, a caller of a small share is charged much for what it gets there.
    for number in range(10):
        each, outcome, _ = one(100, "long")
        scheduler.submit(each, arrive if number == 5 else lambda: None, Caller("long", 0.1))
        waiting.append((each, outcome, newcomer[2]))
    for each, outcome, caller in [one(BUDGET, "short") for _ in range(100)]:
        scheduler.submit(each, lambda: None, caller)
        waiting.append((each, outcome, caller))
    scheduler.start()
    assert all(outcome.done.wait(WAIT_S) for _, outcome, _ in waiting)
    scheduler.stop(WAIT_S)
    arrived = min(place for place, batch in enumerate(backend.log) if batch[0] is waiting[6][0])
    served = min(place for place, batch in enumerate(backend.log) if batch[0] is newcomer[0])
    # After the batch under way and at most one more, each in turn with the long lane.
    assert served - arrived <= 4 * BUDGET // STEP_TOKENS + 1


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=25))
def test_at_most_one_long_response_and_one_batch_are_held_at_once(sizes):
    backend = run_all([one(size) for size in sizes])
    assert max(backend.under_way) <= max([0, *(size for size in sizes if size > BUDGET)]) + BUDGET
    finished = {id(each) for batch in backend.log for each in batch}
    assert len(finished) == len(sizes)


def test_turns_are_even_while_both_have_work_and_idling_earns_nothing():
    turns = Turns()
    for _ in range(50):
        turns.used(turns.next_of([Lane.ORDINARY]), 1.0)
    used = dict.fromkeys(Lane, 0.0)
    for _ in range(100):
        lane = turns.next_of(list(Lane))
        seconds = 5.0 if lane is Lane.LONG else 1.0
        turns.used(lane, seconds)
        used[lane] += seconds
        assert abs(used[Lane.LONG] - used[Lane.ORDINARY]) <= 6.0
