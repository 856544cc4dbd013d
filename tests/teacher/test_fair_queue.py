"""Weighted fair queueing against its definition: shares of tokens, no credit for idling, no charge for what leaves."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tokbridge_teacher.callers import Caller
from tokbridge_teacher.fair_queue import FairQueue


@dataclass(frozen=True, eq=False)
class Work:
    caller: Caller
    num_tokens: int


LARGEST = 50
SHARES = st.sampled_from([0.5, 1.0, 2.0, 3.0])
SIZES = st.lists(st.integers(1, LARGEST), min_size=1, max_size=30)


def take_next(queue: FairQueue[Work]) -> Work:
    work = next(queue.in_order())
    queue.take([work])
    return work


@given(lines=st.dictionaries(st.sampled_from("abcd"), st.tuples(SHARES, SIZES), min_size=2))
def test_while_two_callers_wait_each_gets_its_share_within_one_item(lines):
    queue: FairQueue[Work] = FairQueue()
    callers = {name: Caller(name, share) for name, (share, _) in lines.items()}
    left = Counter()
    for name, (_, sizes) in lines.items():
        for size in sizes:
            queue.push(Work(callers[name], size))
            left[name] += 1
    served = dict.fromkeys(lines, 0.0)
    while len(queue):
        work = take_next(queue)
        name = work.caller.name
        served[name] += work.num_tokens / work.caller.share
        left[name] -= 1
        waiting = [name for name in lines if left[name]]
        for one in waiting:
            for other in waiting:
                bound = LARGEST / callers[one].share + LARGEST / callers[other].share
                assert abs(served[one] - served[other]) <= bound
    assert not left.total()


@given(lines=st.dictionaries(st.sampled_from("abc"), st.tuples(SHARES, SIZES), min_size=1), skip=st.integers(1, 60))
def test_the_order_foreseen_is_the_order_of_taking_one_by_one(lines, skip):
    queue: FairQueue[Work] = FairQueue()
    for name, (share, sizes) in lines.items():
        for size in sizes:
            queue.push(Work(Caller(name, share), size))
    foreseen = list(queue.in_order())
    assert [take_next(queue) for _ in foreseen] == foreseen
    assert len(queue) == 0


def test_a_flood_does_not_delay_another_caller_by_more_than_what_is_taken_already():
    queue: FairQueue[Work] = FairQueue()
    flooder, other = Caller("flooder"), Caller("other")
    for _ in range(1000):
        queue.push(Work(flooder, 10))
    for _ in range(500):
        take_next(queue)
    late = [Work(other, 10) for _ in range(3)]
    for work in late:
        queue.push(work)
    assert [take_next(queue).caller.name for _ in range(6)].count("other") == 3


def test_idling_earns_nothing():
    queue: FairQueue[Work] = FairQueue()
    idler, busy = Caller("idler"), Caller("busy")
    queue.push(Work(idler, 1))
    take_next(queue)
    for _ in range(200):
        queue.push(Work(busy, 10))
    for _ in range(100):
        take_next(queue)
    for _ in range(50):
        queue.push(Work(idler, 10))
    names = [take_next(queue).caller.name for _ in range(20)]
    assert abs(names.count("idler") - names.count("busy")) <= 2


def test_leaving_and_coming_back_clears_no_debt():
    """A caller that lets its line run empty between two requests is not served more often for it."""
    queue: FairQueue[Work] = FairQueue()
    polite, sly = Caller("polite"), Caller("sly")
    for _ in range(100):
        queue.push(Work(polite, 10))
    served = Counter()
    queue.push(Work(sly, 10))
    for _ in range(60):
        work = take_next(queue)
        served[work.caller.name] += 1
        if work.caller is sly:
            queue.push(Work(sly, 10))
    assert abs(served["sly"] - served["polite"]) <= 2


@given(keep=st.lists(st.booleans(), min_size=1, max_size=20))
def test_what_is_removed_before_its_turn_is_not_charged(keep):
    queue: FairQueue[Work] = FairQueue()
    a, b = Caller("a"), Caller("b")
    works = [Work(a, 10) for _ in keep]
    for work in works:
        queue.push(work)
    for work, kept in zip(works, keep, strict=True):
        if not kept:
            assert queue.remove(work)
            assert not queue.remove(work)
    for _ in keep:
        queue.push(Work(b, 10))
    names = [work.caller.name for work in queue.in_order()]
    both = 2 * min(sum(keep), len(keep))
    assert abs(names[:both].count("a") - names[:both].count("b")) <= 1
