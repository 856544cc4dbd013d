"""Checkpoints are written beside training, one at a time, and what goes wrong comes out at the next call."""

import threading

import pytest

from tokbridge.errors import CheckpointError
from tokbridge_trainer.checkpoint_writing import CheckpointWriter

WAIT_S = 10


def test_writing_does_not_hold_up_the_caller():
    writer, may_end, ended = CheckpointWriter(), threading.Event(), threading.Event()

    def write():
        assert may_end.wait(WAIT_S)
        ended.set()

    writer.start(write)
    writer.check()
    assert not ended.is_set()
    may_end.set()
    writer.wait()
    assert ended.is_set()


def test_a_second_checkpoint_waits_for_the_first():
    writer, running, most, lock = CheckpointWriter(), [], [], threading.Lock()

    def write():
        with lock:
            running.append(1)
            most.append(len(running))
        threading.Event().wait(0.02)
        with lock:
            running.pop()

    for _ in range(3):
        writer.start(write)
    writer.wait()
    assert most == [1, 1, 1]


@pytest.mark.parametrize("call", ["check", "wait", "start"])
def test_a_failure_is_a_typed_error_of_the_next_call_and_of_that_one_only(call):
    writer, failed = CheckpointWriter(), threading.Event()

    def fail():
        failed.set()
        raise OSError(28, "No space left on device")

    writer.start(fail)
    assert failed.wait(WAIT_S)
    while writer._running is not None and not writer._running.done():
        pass
    arguments = [lambda: None] if call == "start" else []
    with pytest.raises(CheckpointError, match="No space left"):
        getattr(writer, call)(*arguments)
    writer.check()
    writer.wait()
