"""Admission as a policy: limits, shares, waits; and that no history of any kind moves a limit."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tokbridge.errors import LimitExceededError, OverloadedError
from tokbridge_teacher.admission import Admission, AdmissionLimits, Cost, Lease
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.drain_rate import DrainRate

TOTAL = Cost(requests=8, tokens=100, result_bytes=1000)
LIMITS = AdmissionLimits(TOTAL, newcomer_share=0.25)
CALLERS = [ANONYMOUS, Caller("a"), Caller("b", 2.0), Caller("c", 0.1)]
COSTS = st.builds(Cost, requests=st.just(1), tokens=st.integers(0, 110), result_bytes=st.integers(0, 1100))


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def admitted_in_a_wave(admission: Admission, caller: Caller, cost: Cost) -> list[Lease]:
    leases = []
    try:
        while True:
            leases.append(admission.admit(caller, cost))
    except OverloadedError:
        return leases


class AnyHistory(RuleBasedStateMachine):
    """Requests come, are measured, and leave in any order; the sums kept here are the reference."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.admission = Admission(LIMITS, self.clock)
        self.held: dict[Lease, Cost] = {}

    def fits(self, cost: Cost, but: Lease | None = None) -> bool:
        others = [held for lease, held in self.held.items() if lease is not but]
        return all(
            sum(getattr(other, name) for other in others) + getattr(cost, name) <= getattr(TOTAL, name)
            for name in ("requests", "tokens", "result_bytes")
        )

    @rule(target=leases, caller=st.sampled_from(CALLERS), cost=COSTS)
    def come(self, caller, cost):
        try:
            lease = self.admission.admit(caller, cost)
        except LimitExceededError:
            assert cost.tokens > TOTAL.tokens or cost.result_bytes > TOTAL.result_bytes
            return multiple()
        except OverloadedError as error:
            wait_s = error.details["retry_after_s"]
            assert 0 < wait_s <= LIMITS.longest_retry_s
            assert caller is not ANONYMOUS or not self.fits(cost)
            return multiple()
        assert self.fits(cost)
        self.held[lease] = cost
        return lease

    @rule(lease=leases, cost=COSTS)
    def measure(self, lease, cost):
        try:
            self.admission.settle(lease, cost)
        except LimitExceededError:
            assert cost.tokens > TOTAL.tokens or cost.result_bytes > TOTAL.result_bytes
            return
        except OverloadedError:
            assert lease.caller is not ANONYMOUS or not self.fits(cost, but=lease)
            return
        assert self.fits(cost, but=lease)
        self.held[lease] = cost

    @rule(lease=consumes(leases), seconds=st.floats(0, 100))
    def leave(self, lease, seconds):
        self.clock.now += seconds
        self.admission.release(lease)
        self.admission.release(lease)  # whoever gives up and whoever ends may both say so
        del self.held[lease]

    @invariant()
    def sums_are_those_of_what_is_held(self):
        held = self.admission.held()
        assert held.requests == sum(cost.requests for cost in self.held.values())
        assert held.tokens == sum(cost.tokens for cost in self.held.values())
        assert held.result_bytes == sum(cost.result_bytes for cost in self.held.values())

    def teardown(self):
        """A second wave meets exactly the limit that the first one met."""
        for lease in list(self.held):
            self.admission.release(lease)
        for caller in CALLERS:
            for cost in (Cost(), Cost(tokens=7), Cost(result_bytes=300)):
                fresh = admitted_in_a_wave(Admission(LIMITS, self.clock), caller, cost)
                again = admitted_in_a_wave(self.admission, caller, cost)
                assert len(again) == len(fresh) > 0
                for lease in again:
                    self.admission.release(lease)


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestAnyHistory = AnyHistory.TestCase


def test_the_anonymous_caller_may_hold_everything():
    assert len(admitted_in_a_wave(Admission(LIMITS), ANONYMOUS, Cost())) == TOTAL.requests


def test_a_caller_alone_leaves_room_for_one_that_comes_later():
    admission = Admission(LIMITS)
    flood = admitted_in_a_wave(admission, Caller("flooder"), Cost())
    assert len(flood) == 6  # 8 × 1/(1 + 0.25)
    assert len(admitted_in_a_wave(admission, Caller("other"), Cost())) == 2
    for lease in flood:
        admission.release(lease)
    # While both hold something, neither may fill the place of the other again.
    assert len(admitted_in_a_wave(admission, Caller("flooder"), Cost())) == 3


def test_a_request_larger_than_a_callers_part_is_taken_when_it_holds_nothing_else():
    admission = Admission(LIMITS)
    small = Caller("small", 0.01)
    admission.admit(Caller("a"), Cost(tokens=1))
    assert admission.admit(small, Cost(tokens=90))
    with pytest.raises(OverloadedError):
        admission.admit(small, Cost(tokens=1))


def test_a_refused_measure_leaves_the_lease_as_it_was():
    admission = Admission(LIMITS)
    lease, _ = admission.admit(ANONYMOUS, Cost(tokens=10)), admission.admit(ANONYMOUS, Cost(tokens=80))
    with pytest.raises(OverloadedError):
        admission.settle(lease, Cost(tokens=30))
    assert admission.held() == Cost(requests=2, tokens=90)


def test_a_refusal_tells_how_long_the_excess_will_take_at_the_measured_rate():
    clock = Clock()
    admission = Admission(LIMITS, clock)
    for _ in range(20):  # 50 tokens in 5 seconds, again and again
        lease = admission.admit(ANONYMOUS, Cost(tokens=50))
        clock.now += 5
        admission.release(lease)
        clock.now += 1000  # idle time says nothing of the rate
    admission.admit(ANONYMOUS, Cost(tokens=100))
    with pytest.raises(OverloadedError) as refused:
        admission.admit(ANONYMOUS, Cost(tokens=40))
    assert refused.value.details["retry_after_s"] == pytest.approx(40 / 10, rel=0.01)
    assert refused.value.details["name"] == "max_tokens_in_flight"


def test_before_anything_was_measured_the_wait_is_the_default():
    admission = Admission(LIMITS)
    admitted_in_a_wave(admission, ANONYMOUS, Cost())
    with pytest.raises(OverloadedError) as refused:
        admission.admit(ANONYMOUS, Cost())
    assert refused.value.details["retry_after_s"] == LIMITS.default_retry_s


def test_the_drain_rate_follows_a_change():
    rate = DrainRate(memory_s=10)
    now = 0.0
    rate.observe(now, busy=False, tokens_left=0)
    for per_second, expected in ((100, 100), (10, 10)):
        for _ in range(100):
            now += 1
            rate.observe(now, busy=True, tokens_left=per_second)
        assert rate.seconds_for(1000) == pytest.approx(1000 / expected, rel=0.05)


@pytest.mark.parametrize("scale", [0.01, 1000.0])
def test_shares_weigh_callers_against_each_other_and_their_unit_means_nothing(scale):
    admission, scaled = Admission(LIMITS), Admission(LIMITS)
    for name, share in (("flooder", 1.0), ("newcomer", 1.0), ("small", 0.1)):
        expected = admitted_in_a_wave(admission, Caller(name, share), Cost())
        assert len(admitted_in_a_wave(scaled, Caller(name, scale * share), Cost())) == len(expected)
