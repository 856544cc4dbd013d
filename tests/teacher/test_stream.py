"""What passes between the worker and the reader of one response."""

import asyncio
from typing import cast

import pytest

from tokbridge.errors import DeadlineExceededError, InternalError
from tokbridge_teacher.cancellations import SlowReaderError
from tokbridge_teacher.streams import Finished, ResponseStream
from tokbridge_teacher.targets.marginal import ChunkResult


def emit(stream: ResponseStream, chunk: str) -> None:
    """What stands in for a chunk; the stream does not look into it."""
    stream.emit(cast(ChunkResult, chunk))


async def read_all(stream: ResponseStream) -> list[object]:
    return [event async for event in stream.events()]


async def test_events_arrive_in_order_and_end_with_finished():
    stream = ResponseStream(asyncio.get_running_loop())
    for chunk in ("a", "b"):
        emit(stream, chunk)
    stream.finish(3)
    assert await read_all(stream) == ["a", "b", Finished(3)]


async def test_what_was_computed_before_a_fault_still_arrives():
    stream = ResponseStream(asyncio.get_running_loop())
    emit(stream, "a")
    stream.fail(InternalError("x"))
    emit(stream, "too late")
    events = aiter(stream.events())
    assert await anext(events) == "a"
    with pytest.raises(InternalError):
        await anext(events)


async def test_a_deadline_that_passed_is_noticed_by_the_worker_and_told_to_the_reader():
    now = 0.0
    stream = ResponseStream(asyncio.get_running_loop(), deadline_s=5.0, clock=lambda: now)
    assert not stream.cancelled()
    now = 5.0
    assert stream.cancelled()
    with pytest.raises(DeadlineExceededError):
        await read_all(stream)


async def test_giving_up_drops_what_waits():
    stream = ResponseStream(asyncio.get_running_loop())
    for _ in range(3):
        emit(stream, "rows")
    await asyncio.sleep(0)
    stream.give_up(SlowReaderError("x"))
    emit(stream, "more")
    assert stream.cancelled()
    with pytest.raises(SlowReaderError):
        await read_all(stream)


async def test_the_wait_in_the_queue_is_measured():
    now = 1.0
    stream = ResponseStream(asyncio.get_running_loop(), clock=lambda: now)
    assert stream.queue_seconds == 0.0
    now = 4.0
    stream.start()
    assert stream.queue_seconds == 3.0
