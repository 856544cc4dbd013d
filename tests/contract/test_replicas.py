"""Several replicas of one teacher behind one client: shared out, standing in for one another, found to disagree."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest

from support.fake_replicas import BREAKER, GONE, QUICK, assert_rows, connected, conversation, conversation_for, named
from support.fake_teacher import TEACHER, FakeTeacher, Fault, make_student, serving
from support.freezing_proxy import proxy_to
from tokbridge.client import TeacherClient
from tokbridge.errors import (
    CorruptStreamError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    ShuttingDownError,
    TeacherMismatchError,
    TeacherUnavailableError,
)
from tokbridge.targets import TargetRows


async def test_every_replica_knows_the_student_and_has_answered_the_probe():
    teachers = [named(name) for name in "abc"]
    async with connected(*teachers) as client:
        assert (client.statistics.handshakes, client.statistics.registrations, client.statistics.probes) == (3, 3, 3)
    assert [(len(teacher.students), len(teacher.probes)) for teacher in teachers] == [(1, 1)] * 3
    assert len({teacher.probes[0].response for teacher in teachers}) == 1


async def test_conversations_are_shared_out_and_the_samples_of_one_stay_together():
    teachers = [named("a"), named("b")]
    async with connected(*teachers) as client:
        await asyncio.gather(*(client.score(conversation(number)) for number in range(40) for _ in range(2)))
    seen = [{score.messages[0].content for score in teacher.scores} for teacher in teachers]
    assert all(len(contents) >= 10 for contents in seen)
    assert len(seen[0] & seen[1]) <= 4  # only where a replica had more than its share
    assert sum(len(teacher.scores) for teacher in teachers) == 80


@pytest.mark.parametrize("fault", [GONE, Fault(error=ShuttingDownError("bye")), Fault(corrupt="checksum")])
@pytest.mark.parametrize("after_chunks", [0, 2])
async def test_a_call_that_fails_on_one_replica_is_finished_by_another_at_once(fault, after_chunks):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    teachers = [named("a"), named("b")]
    async with connected(*teachers, sleep=sleep) as client:
        request = await conversation_for(client, teachers[0])
        before = client.statistics
        teachers[0].script.append(replace(fault, after_chunks=after_chunks))
        result = await client.score(request)
        after = client.statistics
    assert_rows(result.rows, request)
    assert waits == [0.0]
    assert result.attempts == 2
    assert after.failovers == result.retries
    assert after.rows - before.rows == request.num_rows
    assert after.finished_calls - before.finished_calls == 1


async def test_a_stream_goes_on_from_another_replica_without_a_row_twice():
    teachers = [named("a"), named("b")]
    teachers[1].chunk_rows = 3
    async with connected(*teachers) as client:
        request = await conversation_for(client, teachers[0])
        rows_before = client.statistics.rows
        teachers[0].script.append(replace(GONE, after_chunks=2))
        parts = [rows async for rows in client.stream(request)]
        assert client.statistics.rows - rows_before == request.num_rows
    assert_rows(TargetRows.concatenate(parts), request)


async def test_what_would_recur_is_not_asked_of_another_replica():
    teachers = [named("a"), named("b")]
    async with connected(*teachers) as client:
        for teacher in teachers:
            teacher.script.append(Fault(error=InvalidRequestError("no")))
        with pytest.raises(InvalidRequestError) as raised:
            await client.score(conversation(0))
        assert client.statistics.failed_calls == {"invalid_request": 1}
    assert sum(len(teacher.scores) for teacher in teachers) == 1
    assert raised.value.details["replica"].startswith("127.0.0.1:")


async def test_every_error_names_the_request():
    teacher = named("a")
    async with connected(teacher, timeout_s=1.5) as client:
        teacher.script.append(Fault(status=grpc.StatusCode.ABORTED))
        teacher.script.append(Fault(hang=True))
        ids = []
        for _ in range(2):
            with pytest.raises((DeadlineExceededError, RuntimeError)) as raised:
                await client.score(conversation(0))
            ids.append(raised.value.details["request_id"])
    assert ids == [score.request_id for score in teacher.scores]
    assert ids == [metadata["x-request-id"] for metadata in teacher.metadata[-2:]]
    assert all(metadata["x-request-id"] for metadata in teacher.metadata)


async def test_a_replica_that_asks_for_a_wait_is_left_alone_while_another_works():
    teachers = [named("a"), named("b")]
    async with connected(*teachers) as client:
        request = await conversation_for(client, teachers[0])
        asked = len(teachers[0].scores)
        teachers[0].script.append(Fault(error=OverloadedError("full", retry_after_s=600)))
        for _ in range(5):
            await client.score(request)
        assert client.statistics.retries == {"overloaded": 1}
    assert len(teachers[0].scores) == asked + 1


async def test_the_deadline_stands_over_all_replicas():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    teachers = [named("a"), named("b"), named("c")]
    async with connected(*teachers, timeout_s=1.0, sleep=sleep, clock=lambda: sum(waits)) as client:
        for teacher in teachers:
            teacher.script.extend([Fault(error=OverloadedError("full"))] * 1000)
        with pytest.raises(DeadlineExceededError, match="full"):
            await client.score(conversation(0))
    assert 0.5 < sum(waits) < 1.0
    assert all(teacher.scores for teacher in teachers)


async def test_a_run_starts_without_a_replica_that_is_down_and_takes_it_in_when_it_comes():
    up, late = named("a"), named("b")
    async with serving(up) as port:
        async with serving(FakeTeacher()) as free_port:
            pass
        targets = [f"127.0.0.1:{port}", f"127.0.0.1:{free_port}"]
        async with TeacherClient(targets, retry=QUICK, breaker=BREAKER) as client:
            await client.connect(make_student())
            for number in range(20):
                await client.score(conversation(number))
            async with serving(late, free_port):
                await score_until(client, lambda: late.scores)
            assert client.statistics.breaker_openings[targets[1]] >= 1
            assert client.statistics.failed_calls == {}


async def score_until(client, condition):
    for number in range(1000):
        await client.score(conversation(number))
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


async def test_calls_do_not_wait_for_a_replica_that_is_gone():
    """Its breaker opens, and the handshakes that find it back are made beside the calls."""
    teachers = [named("a"), named("b")]
    async with serving(teachers[0]) as port, AsyncExitStack() as second:
        other = await second.enter_async_context(serving(teachers[1]))
        options = {"retry": QUICK, "breaker": replace(BREAKER, failures=1)}
        async with TeacherClient([f"127.0.0.1:{port}", f"127.0.0.1:{other}"], **options) as client:
            await client.connect(make_student())
            await second.aclose()
            results = [await client.score(conversation(number)) for number in range(30)]
            assert client.statistics.failed_calls == {}
    assert sum(result.attempts for result in results) <= 32


async def test_many_calls_that_die_with_one_replica_all_finish_on_the_other():
    teachers = [named("a"), named("b")]
    async with serving(teachers[0]) as port, AsyncExitStack() as second:
        other = await second.enter_async_context(serving(teachers[1]))
        async with TeacherClient([f"127.0.0.1:{port}", f"127.0.0.1:{other}"], retry=QUICK) as client:
            await client.connect(make_student())
            for teacher in teachers:
                teacher.script.extend([Fault(hang=True, after_chunks=1)] * 40)
            calls = [asyncio.create_task(client.score(conversation(number, 12 + number))) for number in range(40)]
            while sum(len(teacher.scores) for teacher in teachers) < 40:
                await asyncio.sleep(0.01)
            teachers[0].script.clear()
            await second.aclose()
            moved = [number for number in range(40) if not is_on(teachers[0], number)]
            results = await asyncio.gather(*(calls[number] for number in moved))
            for number, result in zip(moved, results, strict=True):
                assert_rows(result.rows, conversation(number, 12 + number))
            assert moved
            assert client.statistics.failovers.total() >= len(moved)
            assert client.statistics.rows == sum(13 + number for number in moved)


def is_on(teacher, number):
    return any(score.messages[0].content == f"question {number}" for score in teacher.scores)


@pytest.mark.parametrize("fact", ["dtype", "context_length", "chat_template_hash"])
async def test_replicas_with_other_facts_are_refused_at_the_handshake(fact):
    other = {"dtype": "bfloat16", "context_length": 99, "chat_template_hash": "d" * 64}[fact]
    with pytest.raises(TeacherMismatchError, match=fact) as raised:
        async with connected(named("a"), named("b", **{fact: other})):
            pass
    details = raised.value.details
    assert details["replica"] != details["reference"]
    assert all(str(details[name]).startswith("127.0.0.1:") for name in ("replica", "reference"))


async def test_replicas_whose_rows_differ_are_refused_at_the_handshake():
    off = named("b")
    off.nudge = 1.0
    with pytest.raises(TeacherMismatchError, match="not replicas of one teacher") as raised:
        async with connected(named("a"), off):
            pass
    assert raised.value.details["divergence"] > 0.01
    assert "request_id" in raised.value.details


async def test_a_small_difference_is_let_pass_and_the_bound_is_the_users():
    for bound, expected in ((0.01, None), (0.0, TeacherMismatchError), (None, None)):
        off = named("b")
        off.nudge = 0.02
        async with AsyncExitStack() as stack:
            if expected:
                stack.enter_context(pytest.raises(expected))
            await stack.enter_async_context(connected(named("a"), off, max_divergence=bound))


async def test_a_restart_with_other_weights_is_found():
    teacher = named("a")
    async with connected(teacher) as client:
        teacher.script.append(GONE)
        teacher.forget(instance_id="second")
        teacher.nudge = 1.0
        with pytest.raises(TeacherMismatchError, match="not replicas"):
            await client.score(conversation(0))
    assert len(teacher.probes) == 2


async def test_the_same_instance_is_not_probed_again():
    teacher = named("a")
    async with connected(teacher) as client:
        teacher.script.append(GONE)
        await client.score(conversation(0))
    assert (teacher.greetings, len(teacher.probes)) == (2, 1)


async def test_a_replica_that_comes_back_as_another_teacher_ends_the_run_whoever_is_asked():
    teachers = [named("a"), named("b")]
    async with connected(*teachers) as client:
        request = await conversation_for(client, teachers[0])
        teachers[0].script.extend([GONE] * 3)
        teachers[0].description = replace(TEACHER, instance_id="c", model="another")
        with pytest.raises(TeacherMismatchError, match="model"):
            await score_until_error(client, request)
        with pytest.raises(TeacherMismatchError, match="model"):
            await client.score(await other_request(request))


async def test_a_replica_that_disagreed_and_was_taken_out_is_no_fault_any_more():
    teachers = [named("a"), named("b")]
    async with AsyncExitStack() as first:
        port = await first.enter_async_context(serving(teachers[0]))
        async with serving(teachers[1]) as other:
            targets = [f"127.0.0.1:{port}", f"127.0.0.1:{other}"]
            async with TeacherClient(targets, retry=QUICK, breaker=BREAKER) as client:
                await client.connect(make_student())
                request = await conversation_for(client, teachers[0])
                teachers[0].script.extend([GONE] * 3)
                teachers[0].description = replace(TEACHER, instance_id="c", model="another")
                with pytest.raises(TeacherMismatchError):
                    await score_until_error(client, request)
                await first.aclose()
                for _ in range(200):
                    try:
                        await client.score(request)
                    except TeacherMismatchError:
                        await asyncio.sleep(0.02)
                    else:
                        return
    raise AssertionError("the run is held up by a replica that is gone")


async def score_until_error(client, request):
    for _ in range(1000):
        await client.score(request)
        await asyncio.sleep(0.01)


async def other_request(request):
    return replace(request, messages=[{"role": "user", "content": "something else"}])


async def test_a_probe_that_all_refuse_alike_does_not_stop_a_run():
    teachers = [named("a"), named("b")]
    for teacher in teachers:
        teacher.probe_error = InvalidRequestError("no such thing")
    async with connected(*teachers) as client:
        await client.score(conversation(0))


async def test_a_probe_that_fails_by_chance_is_made_again():
    teacher = named("a")
    teacher.probe_error = OverloadedError("full")

    async def sleep(seconds):
        teacher.probe_error = None

    async with connected(teacher, sleep=sleep):
        assert len(teacher.probes) == 2


class Names:
    """A resolver whose answers change."""

    def __init__(self, *addresses):
        self.addresses = list(addresses)
        self.lookups = 0

    async def __call__(self, host, port):
        assert host == "teacher.example"
        self.lookups += 1
        if not self.addresses:
            raise OSError(-2, "Name or service not known")
        return list(self.addresses)


async def test_each_address_of_a_name_is_a_replica_and_changes_are_followed():
    clock = [0.0]
    first, second, third = named("a"), named("b"), named("c")
    names = Names("127.0.0.1", "127.0.0.2")
    async with serving(first) as port, serving(second, port, host="127.0.0.2"), serving(third, port, host="127.0.0.3"):
        options = {"retry": QUICK, "resolve": names, "clock": lambda: clock[0]}
        async with TeacherClient(f"teacher.example:{port}", **options) as client:
            await client.connect(make_student())
            for number in range(20):
                await client.score(conversation(number))
            assert first.scores
            assert second.scores
            assert names.lookups == 1
            names.addresses = ["127.0.0.2", "127.0.0.3"]
            clock[0] += 31
            await score_until(client, lambda: third.scores)
            seen = len(first.scores)
            for number in range(20):
                await client.score(conversation(number))
            assert len(first.scores) == seen
            names.addresses = []
            clock[0] += 31
            await score_until(client, lambda: names.lookups == 3)
            await client.score(conversation(0))


async def test_a_name_that_never_resolves_is_said_so():
    client = TeacherClient("teacher.example:1", retry=QUICK, connect_timeout_s=0.2, resolve=Names())
    async with client:
        with pytest.raises(TeacherUnavailableError, match=r"teacher\.example does not resolve"):
            await client.connect(make_student())


async def test_corruption_everywhere_is_given_up():
    teachers = [named("a"), named("b")]
    async with connected(*teachers) as client:
        for teacher in teachers:
            teacher.script.extend([Fault(corrupt="checksum")] * 10)
        with pytest.raises(CorruptStreamError):
            await client.score(conversation(0))
    assert sum(len(teacher.scores) for teacher in teachers) == 4


@pytest.mark.nightly
async def test_a_host_that_vanishes_in_mid_stream_is_noticed_and_left():
    """Nothing is closed and nothing answers: only gRPC's own pings can tell. Takes as long as they do, 45 s."""
    teachers = [named("a"), named("b")]
    async with serving(teachers[0]) as port, serving(teachers[1]) as other, proxy_to(port) as proxy:
        targets = [f"127.0.0.1:{proxy.port}", f"127.0.0.1:{other}"]
        async with TeacherClient(targets, retry=QUICK, timeout_s=120) as client:
            await client.connect(make_student())
            request = await conversation_for(client, teachers[0])
            teachers[0].script.append(Fault(hang=True, after_chunks=1))
            stream = client.stream(request)
            parts = [await anext(stream)]
            proxy.flowing.clear()
            parts += [rows async for rows in stream]
            assert_rows(TargetRows.concatenate(parts), request)
            assert client.statistics.failovers == {"teacher_unavailable": 1}
