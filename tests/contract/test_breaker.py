"""Every transition of the circuit breaker, on a clock that is a number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge.client.breaker import Breaker, BreakerPolicy, BreakerState
from tokbridge.errors import InvalidConfigError

POLICY = BreakerPolicy(failures=3, open_s=10, multiplier=2, max_open_s=35)
CLOSED, OPEN, HALF_OPEN = BreakerState


def opened(now_s=0.0) -> Breaker:
    breaker = Breaker(POLICY)
    assert [breaker.failed(now_s) for _ in range(3)] == [False, False, True]
    return breaker


def test_it_is_closed_at_first_and_nobody_waits():
    breaker = Breaker(POLICY)
    assert breaker.state(0.0) is CLOSED
    assert breaker.ready_at_s == float("-inf")


def test_so_many_failures_in_a_row_open_it():
    breaker = Breaker(POLICY)
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert breaker.state(0.0) is CLOSED
    assert breaker.failed(1.0)
    assert breaker.state(1.0) is OPEN
    assert breaker.ready_at_s == 11


def test_a_finished_call_in_between_starts_the_count_again():
    breaker = Breaker(POLICY)
    breaker.failed(0.0)
    breaker.failed(0.0)
    breaker.finished(0.0)
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert breaker.state(0.0) is CLOSED


def test_a_handshake_in_between_does_not():
    """Or a service that greets and then fails every call would be asked for ever."""
    breaker = Breaker(POLICY)
    breaker.failed(0.0)
    breaker.answered()
    breaker.failed(0.0)
    breaker.answered()
    assert breaker.failed(0.0)


def test_it_is_half_open_from_the_end_of_its_pause_on():
    breaker = opened()
    assert breaker.state(9.999) is OPEN
    assert breaker.state(10.0) is HALF_OPEN


def test_late_news_change_nothing_while_it_is_open():
    breaker = opened()
    assert not breaker.failed(5.0)
    assert not breaker.trip(5.0)
    breaker.finished(5.0)
    assert breaker.ready_at_s == 10
    assert breaker.openings == 1


def test_a_call_that_finishes_while_half_open_began_before_and_proves_nothing():
    breaker = opened()
    breaker.finished(10.0)
    assert breaker.state(10.0) is HALF_OPEN


def test_a_failed_trial_opens_it_again_for_longer_up_to_a_cap():
    breaker = opened()
    pauses = []
    for _ in range(4):
        now_s = breaker.ready_at_s
        assert breaker.failed(now_s)
        pauses.append(breaker.ready_at_s - now_s)
    assert pauses == [20, 35, 35, 35]


def test_a_good_trial_closes_it_on_probation():
    breaker = opened()
    breaker.answered()
    assert breaker.state(10.0) is CLOSED
    assert breaker.failed(10.0)
    assert breaker.ready_at_s == 30  # the second pause, not the first again


def test_a_finished_call_ends_the_probation():
    breaker = opened()
    breaker.answered()
    breaker.finished(10.0)
    assert breaker.openings == 0
    assert not breaker.failed(10.0)
    assert not breaker.failed(10.0)
    assert breaker.failed(10.0)
    assert breaker.ready_at_s == 20


def test_a_handshake_that_ends_while_it_is_open_closes_it():
    breaker = opened()
    breaker.answered()
    assert breaker.state(1.0) is CLOSED


def test_tripping_opens_it_at_once():
    breaker = Breaker(POLICY)
    assert breaker.trip(0.0)
    assert breaker.state(0.0) is OPEN


@given(st.lists(st.sampled_from(["failed", "trip", "answered", "finished", "wait"]), max_size=60))
def test_no_pause_is_longer_than_the_cap_and_every_pause_ends(events):
    breaker, now_s = Breaker(POLICY), 0.0
    for event in events:
        if event == "answered":
            breaker.answered()
        elif event == "wait":
            now_s += 7
        else:
            getattr(breaker, event)(now_s)
        assert breaker.ready_at_s - now_s <= POLICY.max_open_s
        assert breaker.state(now_s + POLICY.max_open_s) is not OPEN


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"open_s": 0}, {"multiplier": 0.9}, {"max_open_s": 0.5}])
def test_a_policy_out_of_range_is_refused(wrong):
    with pytest.raises(InvalidConfigError, match=next(iter(wrong))):
        BreakerPolicy(**wrong)
