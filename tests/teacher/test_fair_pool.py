"""Preparation threads: fair between callers, nothing runs that was cancelled, nothing is left waiting at the end."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from tokbridge.errors import ShuttingDownError
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.fair_pool import FairPool

WAIT_S = 10.0
A, B = Caller("a"), Caller("b")


class HeldPool:
    """A pool of one thread that is busy until `go` is set, and a record of what ran after that."""

    def __init__(self) -> None:
        self.pool = FairPool(1, "test")
        self.go = threading.Event()
        self.ran: list[str] = []
        begun = threading.Event()
        self.first = self.pool.submit(A, 1, lambda: begun.set() or self.go.wait(WAIT_S))
        assert begun.wait(WAIT_S)

    def submit(self, caller: Caller, tokens: int = 1):
        return self.pool.submit(caller, tokens, lambda: self.ran.append(caller.name))


@pytest.fixture
def held() -> Iterator[HeldPool]:
    held = HeldPool()
    yield held
    held.go.set()
    held.pool.close()


def test_a_flood_of_one_caller_does_not_hold_up_another(held):
    futures = [held.submit(A) for _ in range(50)] + [held.submit(B) for _ in range(5)]
    held.go.set()
    for future in futures:
        future.result(WAIT_S)
    assert held.ran[:12].count("b") == 5


def test_what_is_cancelled_leaves_the_queue_at_once_and_never_runs(held):
    kept, gone = held.submit(A), [held.submit(B) for _ in range(100)]
    for future in gone:
        assert future.cancel()
    assert held.pool.waiting == 1
    held.go.set()
    kept.result(WAIT_S)
    assert held.ran == ["a"]
    with pytest.raises(CancelledError):
        gone[0].result(WAIT_S)


def test_a_call_that_raises_fails_its_own_future_only(held):
    def fail() -> None:
        raise KeyError("this one")

    faulty, next_one = held.pool.submit(A, 1, fail), held.submit(A)
    held.go.set()
    with pytest.raises(KeyError, match="this one"):
        faulty.result(WAIT_S)
    next_one.result(WAIT_S)


def test_closing_fails_what_waits_and_takes_no_more(held):
    waiting = held.submit(A)
    held.pool.close()
    with pytest.raises(ShuttingDownError):
        waiting.result(WAIT_S)
    with pytest.raises(ShuttingDownError):
        held.submit(A)
    held.go.set()
    assert held.first.result(WAIT_S)
    assert held.ran == []
