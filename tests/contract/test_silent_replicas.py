"""A replica that takes calls and sends nothing is left for another; one that only lets a call wait is not."""

import asyncio

import pytest

from support.fake_replicas import assert_rows, connected, conversation, conversation_for, named
from support.fake_teacher import Fault
from tokbridge.client import TeacherClient
from tokbridge.errors import InvalidConfigError

LIMIT_S = 0.05
"""On the tests' own clock; the watch looks at it as often in real time."""
LOOKS_S = 0.3
"""Real seconds in which the watch looks several times."""


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def replicas(*teachers, clock):
    return connected(*teachers, clock=clock, max_silence_s=LIMIT_S, timeout_s=60.0)


async def hung(client, teacher, request, after_chunks=0):
    """A call that waits for a teacher that does not go on."""
    asked = len(teacher.scores)
    teacher.script.append(Fault(hang=True, after_chunks=after_chunks))
    call = asyncio.create_task(client.score(request))
    while len(teacher.scores) == asked:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    return call


@pytest.mark.parametrize("after_chunks", [0, 1])
async def test_a_call_goes_to_another_replica_and_the_silent_one_has_to_answer_the_probe(after_chunks):
    clock, teachers = Clock(), [named("a"), named("b")]
    async with replicas(*teachers, clock=clock) as client:
        request = await conversation_for(client, teachers[0])
        call = await hung(client, teachers[0], request, after_chunks)
        clock.now_s += 2 * LIMIT_S
        result = await call
        assert_rows(result.rows, request)
        assert client.statistics.failovers == {"teacher_unavailable": 1}
        assert client.statistics.breaker_openings.total() == 1
        clock.now_s += 10
        await client.score(request)
        while len(teachers[0].probes) < 2:
            await asyncio.sleep(0.01)
    assert len(teachers[1].probes) == 1


async def test_what_other_calls_hear_counts():
    clock, teachers = Clock(), [named("a"), named("b")]
    async with replicas(*teachers, clock=clock) as client:
        request = await conversation_for(client, teachers[0])
        call = await hung(client, teachers[0], request)
        for _ in range(6):
            clock.now_s += 0.6 * LIMIT_S
            await client.score(request)
            await asyncio.sleep(0.6 * LIMIT_S)
        assert not call.done()
        assert not client.statistics.failovers
        call.cancel()


async def test_the_only_replica_is_waited_for():
    clock, teacher = Clock(), named("a")
    async with replicas(teacher, clock=clock) as client:
        call = await hung(client, teacher, conversation(0))
        clock.now_s += 10 * LIMIT_S
        await asyncio.sleep(LOOKS_S)
        assert not call.done()
        call.cancel()


async def test_a_reader_that_takes_its_time_is_no_silence():
    clock, teachers = Clock(), [named("a"), named("b")]
    async with replicas(*teachers, clock=clock) as client:
        parts = []
        async for rows in client.stream(conversation(0)):
            parts.append(rows)
            clock.now_s += 10 * LIMIT_S
            await asyncio.sleep(LOOKS_S)
        assert len(parts) > 1
        assert not client.statistics.failovers


def test_the_limit_is_positive():
    with pytest.raises(InvalidConfigError, match="above 0"):
        TeacherClient("localhost:1", max_silence_s=0.0)
