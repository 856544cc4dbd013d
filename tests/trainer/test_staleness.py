"""The staleness rule, as a state machine against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge_trainer.staleness import StalenessGate


def fill(gate: StalenessGate) -> list[int]:
    started = []
    while gate.may_start():
        started.append(gate.start())
    return started


def test_lag_zero_is_strictly_on_policy():
    gate = StalenessGate(max_lag=0, end_step=3)
    assert fill(gate) == [0]
    assert gate.trained(0) == 1
    assert fill(gate) == [1]


def test_lag_one_keeps_one_step_ahead():
    gate = StalenessGate(max_lag=1, end_step=3)
    assert fill(gate) == [0, 1]
    gate.trained(0)
    assert fill(gate) == [2]
    gate.trained(1)
    assert fill(gate) == []


def test_the_warm_start_runs_ahead_but_the_first_rollouts_wait_for_its_last_step():
    gate = StalenessGate(max_lag=0, end_step=4, first_on_policy_step=2)
    assert fill(gate) == [0, 1]
    gate.trained(0)
    assert fill(gate) == []
    gate.trained(1)
    assert fill(gate) == [2]


@given(
    lag=st.integers(0, 4),
    steps=st.integers(1, 30),
    first=st.integers(0, 10),
    resumed=st.integers(0, 10),
    choices=st.lists(st.booleans(), max_size=200),
)
def test_no_rollout_is_ever_staler_than_allowed_and_nothing_is_skipped(lag, steps, first, resumed, choices):
    start = min(resumed, steps)
    gate = StalenessGate(max_lag=lag, end_step=steps, first_on_policy_step=first, version=start, next_step=start)
    written_by: dict[int, int] = {}
    for prefers_start in [*choices, *[True, False] * (2 * steps)]:
        if prefers_start and gate.may_start():
            written_by[gate.next_step] = gate.version
            gate.start()
        elif gate.version < gate.next_step:
            trained = gate.version
            allowed = lag if trained >= first else max(lag, gate.prefetch)
            assert 0 <= trained - written_by[trained] <= allowed
            gate.trained(trained)
    assert sorted(written_by) == list(range(start, steps))
    assert gate.version == steps


def test_wrong_transitions_are_refused():
    gate = StalenessGate(max_lag=0, end_step=2)
    with pytest.raises(RuntimeError):
        gate.trained(0)
    gate.start()
    with pytest.raises(RuntimeError):
        gate.start()
    with pytest.raises(RuntimeError):
        gate.trained(1)
