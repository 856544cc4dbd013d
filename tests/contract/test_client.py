"""The client against a real gRPC server on a loopback socket that fails as it is told."""

import asyncio
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from support.fake_teacher import (
    SUMMARY,
    TEACHER,
    FakeTeacher,
    Fault,
    expected_rows,
    make_request,
    make_student,
    serving,
)
from tokbridge.client import RetryPolicy, ScoreResult, TeacherClient, TeacherExpectation
from tokbridge.client.expectation import check_version
from tokbridge.errors import (
    ChatTemplateError,
    CorruptStreamError,
    DeadlineExceededError,
    InternalError,
    InvalidConfigError,
    LimitExceededError,
    OverloadedError,
    RequestCancelledError,
    ShuttingDownError,
    TeacherMismatchError,
    TeacherUnavailableError,
    UnauthenticatedError,
    UnsupportedModeError,
)
from tokbridge.modes import Routing, Spanning
from tokbridge.targets import TargetRows

QUICK = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
REQUEST = make_request()


@asynccontextmanager
async def connected(teacher: FakeTeacher, **options):
    async with serving(teacher) as port, TeacherClient(f"127.0.0.1:{port}", **{"retry": QUICK} | options) as client:
        await client.connect(make_student())
        yield client


def assert_all_rows(rows: TargetRows, request=REQUEST) -> None:
    expected = expected_rows(request)
    assert rows.first_row == 0
    np.testing.assert_array_equal(rows.cases, expected.cases)
    np.testing.assert_array_equal(rows.cell_ids, expected.cell_ids)
    np.testing.assert_array_equal(rows.row_offsets, expected.row_offsets)
    np.testing.assert_array_equal(rows.emitted_log_prob, expected.emitted_log_prob)
    np.testing.assert_allclose(rows.row_mass(), expected.row_mass(), atol=1e-6)


async def test_a_score_gives_all_rows_and_the_trailer():
    teacher = FakeTeacher()
    async with connected(teacher, metadata=[("authorization", "Bearer x")]) as client:
        assert client.teacher == TEACHER
        result = await client.score(REQUEST)
    assert_all_rows(result.rows)
    assert {name: getattr(result, name) for name in vars(SUMMARY)} == vars(SUMMARY)
    assert (result.attempts, result.retries) == (1, {})
    assert teacher.metadata[0]["authorization"] == "Bearer x"
    assert teacher.scores[0].request_id
    assert (client.statistics.calls, client.statistics.finished_calls, client.statistics.rows) == (
        1,
        1,
        REQUEST.num_rows,
    )
    assert client.statistics.received_bytes > 0


async def test_a_stream_gives_the_rows_chunk_by_chunk():
    async with connected(FakeTeacher(chunk_rows=5)) as client:
        parts = [rows async for rows in client.stream(REQUEST)]
    assert [part.num_rows for part in parts] == [5, 5, 3]
    assert_all_rows(TargetRows.concatenate(parts))


@pytest.mark.parametrize("error", [OverloadedError("full"), ShuttingDownError("bye"), TeacherUnavailableError("proxy")])
async def test_retryable_errors_are_retried_with_the_same_request_id(error):
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.extend([Fault(error=error), Fault(error=error, after_chunks=2)])
        result = await client.score(REQUEST)
    assert_all_rows(result.rows)
    assert (result.attempts, result.retries) == (3, {error.code.value: 2})
    assert len({score.request_id for score in teacher.scores}) == 1
    assert client.statistics.retries == {error.code.value: 2}
    assert client.statistics.attempts == 1 + 3  # the first one is the handshake's


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "teacher_unavailable"),
        (grpc.StatusCode.CANCELLED, "teacher_unavailable"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded"),
        (grpc.StatusCode.INTERNAL, "corrupt_stream"),
        (grpc.StatusCode.UNKNOWN, "corrupt_stream"),
    ],
)
async def test_bare_statuses_of_transports_and_proxies_are_retried(status, reason):
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(status=status, after_chunks=1))
        result = await client.score(REQUEST)
    assert_all_rows(result.rows)
    assert result.retries == {reason: 1}


@pytest.mark.parametrize("corrupt", ["checksum", "no_trailer", "missing_rows", "wrong_count", "bad_cells"])
async def test_a_corrupt_stream_is_scored_again(corrupt):
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(corrupt=corrupt))
        result = await client.score(REQUEST)
    assert_all_rows(result.rows)
    assert result.retries == {"corrupt_stream": 1}


async def test_a_stream_never_hands_out_a_row_twice():
    teacher = FakeTeacher(chunk_rows=4)
    async with connected(teacher) as client:
        teacher.script.extend(Fault(status=grpc.StatusCode.UNAVAILABLE, after_chunks=n) for n in (2, 0, 1, 3))
        parts = []
        async for rows in client.stream(REQUEST):
            parts.append(rows)
            teacher.chunk_rows = 3  # the next attempt cuts elsewhere
    assert_all_rows(TargetRows.concatenate(parts))
    assert len(teacher.scores) == 5


async def test_a_stream_whose_rows_prove_corrupt_is_not_mended_in_secret():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(corrupt="checksum"))
        with pytest.raises(CorruptStreamError, match="checksum"):
            async for _ in client.stream(REQUEST):
                pass
    assert len(teacher.scores) == 1


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(error=ChatTemplateError("no system role")), ChatTemplateError),
        (Fault(status=grpc.StatusCode.ABORTED), InternalError),
        (Fault(status=grpc.StatusCode.UNIMPLEMENTED), TeacherMismatchError),
        (Fault(status=grpc.StatusCode.UNAUTHENTICATED), UnauthenticatedError),
        (Fault(error=OverloadedError("full"), metadata=(("grpc-retry-pushback-ms", "-1"),)), OverloadedError),
        (Fault(error=OverloadedError("full"), metadata=(("grpc-retry-pushback-ms", "x"),)), OverloadedError),
    ],
)
async def test_other_errors_are_raised_at_once(fault, expected):
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(fault)
        with pytest.raises(expected):
            await client.score(REQUEST)
    assert len(teacher.scores) == 1


async def test_the_message_and_details_of_an_error_arrive():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(error=ChatTemplateError("no system role", message_index=3)))
        with pytest.raises(ChatTemplateError, match="no system role") as raised:
            await client.score(REQUEST)
    details = raised.value.details
    assert (details["message_index"], details["request_id"]) == (3, "some-id")
    assert details["replica"].startswith("127.0.0.1:")


async def test_the_wait_a_service_asks_for_is_kept():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    teacher = FakeTeacher()
    async with connected(teacher, sleep=sleep, clock=lambda: sum(waits)) as client:
        teacher.script.append(Fault(error=OverloadedError("full", retry_after_s=7)))
        teacher.script.append(Fault(error=OverloadedError("full"), metadata=(("grpc-retry-pushback-ms", "9000"),)))
        await client.score(REQUEST)
    assert waits == [7, 9]


def retry_info(**delay: int) -> bytes:
    """The status of a proxy that says how long to wait."""
    status = Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    status.details.add().Pack(ErrorInfo(reason="RATE_LIMITED"))
    status.details.add().Pack(RetryInfo(retry_delay=Duration(**delay)))
    return status.SerializeToString()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"grpc-status-details-bin": retry_info(seconds=12, nanos=500_000_000)}, 12.5),
        ({"grpc-status-details-bin": retry_info(seconds=12), "grpc-retry-pushback-ms": "9000"}, 9),
        ({"grpc-status-details-bin": Status(message="busy").SerializeToString()}, None),
        ({"grpc-status-details-bin": b"\xff"}, None),
    ],
)
async def test_the_wait_a_proxy_asks_for_is_kept(metadata, expected):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    teacher = FakeTeacher()
    async with connected(teacher, sleep=sleep, clock=lambda: sum(waits)) as client:
        teacher.script.append(Fault(status=grpc.StatusCode.RESOURCE_EXHAUSTED, metadata=tuple(metadata.items())))
        await client.score(REQUEST)
    if expected is None:
        (wait,) = waits
        assert wait < 1, "the client's own backoff"
    else:
        assert waits == [expected]


async def test_a_forgotten_student_is_registered_once_for_many_calls():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.forget(instance_id=teacher.description.instance_id)  # evicted, not restarted
        results = await asyncio.gather(*(client.score(make_request(n)) for n in range(1, 20)))
    assert teacher.registrations == 2
    assert client.statistics.registrations == 2
    for n, result in enumerate(results, start=1):
        assert_all_rows(result.rows, make_request(n))


async def test_a_teacher_that_restarts_on_its_port_gets_its_student_again():
    teacher = FakeTeacher()
    async with serving(teacher) as port:
        client = TeacherClient(f"127.0.0.1:{port}", retry=QUICK)
        await client.connect(make_student())
        teacher.script.append(Fault(after_chunks=1, hang=True))
        call = asyncio.create_task(client.score(REQUEST))
        while not teacher.scores:
            await asyncio.sleep(0.01)
    teacher.forget()
    await asyncio.sleep(0.05)
    assert not call.done()
    async with serving(teacher, port), client:
        result = await call
        assert client.teacher.instance_id == "second"
    assert_all_rows(result.rows)
    assert result.retries["teacher_unavailable"] >= 1
    assert teacher.registrations == 2


async def test_a_reconnect_to_the_same_process_does_not_register_again():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(status=grpc.StatusCode.UNAVAILABLE))
        await client.score(REQUEST)
    assert (teacher.greetings, teacher.registrations) == (2, 1)


@pytest.mark.parametrize(
    "change", [{"model": "another"}, {"vocabulary_fingerprint": "0" * 64}, {"stop_ids": frozenset({8})}]
)
async def test_another_teacher_at_the_same_address_ends_the_run(change):
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(status=grpc.StatusCode.UNAVAILABLE))
        teacher.description = replace(TEACHER, instance_id="second", **change)
        with pytest.raises(TeacherMismatchError, match=next(iter(change))):
            await client.score(REQUEST)
    assert len(teacher.scores) == 1


@pytest.mark.parametrize(
    ("description", "expectation", "error"),
    [
        ({"model": "b"}, {"model": "a"}, TeacherMismatchError),
        ({}, {"vocabulary_fingerprint": "a"}, TeacherMismatchError),
        ({"routings": frozenset({Routing.GREEDY})}, {"routing": Routing.BPE}, UnsupportedModeError),
        ({"spannings": frozenset({Spanning.REALIZED})}, {"spanning": Spanning.LOOKAHEAD}, UnsupportedModeError),
        ({"version": "99.0.0"}, {}, TeacherMismatchError),
        ({"version": ""}, {}, TeacherMismatchError),
        ({"limits": replace(TEACHER.limits, max_vocabulary_size=10)}, {}, LimitExceededError),
        ({"limits": replace(TEACHER.limits, max_vocabulary_bytes=10)}, {}, LimitExceededError),
    ],
)
async def test_the_handshake_refuses_a_teacher_that_is_not_meant(description, expectation, error):
    teacher = FakeTeacher(description=replace(TEACHER, **description))
    with pytest.raises(error):
        async with connected(teacher, expectation=TeacherExpectation(**expectation)):
            pass
    assert teacher.registrations == 0


async def test_connect_waits_for_a_teacher_that_is_still_starting():
    teacher = FakeTeacher()
    teacher.greeting_faults.extend([Fault(status=grpc.StatusCode.UNAVAILABLE)] * 3)
    async with connected(teacher) as client:
        assert client.statistics.handshakes == 4


async def test_connect_says_that_nobody_answers():
    async with TeacherClient("127.0.0.1:1", retry=QUICK, connect_timeout_s=0.3) as client:
        with pytest.raises(TeacherUnavailableError, match=r"no teacher answers at 127\.0\.0\.1:1"):
            await client.connect(make_student())


async def test_a_client_that_found_nobody_may_connect_again():
    async with serving(FakeTeacher()) as port:
        pass
    async with TeacherClient(f"127.0.0.1:{port}", retry=QUICK, connect_timeout_s=0.3) as client:
        with pytest.raises(TeacherUnavailableError):
            await client.connect(make_student())
        async with serving(FakeTeacher(), port):
            await client.connect(make_student())
            assert_all_rows((await client.score(REQUEST)).rows)


async def test_a_call_that_overtakes_connect_is_told_so():
    looked_up = asyncio.Event()

    async def resolve(host, port):
        await looked_up.wait()
        return ["127.0.0.1"]

    async with serving(FakeTeacher()) as port, TeacherClient(f"name:{port}", resolve=resolve) as client:
        connecting = asyncio.create_task(client.connect(make_student()))
        await asyncio.sleep(0.01)
        with pytest.raises(TeacherUnavailableError, match="not reached its teacher yet"):
            await client.score(REQUEST)
        looked_up.set()
        await connecting


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"top_k": 65}, LimitExceededError),
        ({"response": b"x" * 1001}, LimitExceededError),
        ({"spanning": Spanning.LOOKAHEAD}, UnsupportedModeError),
    ],
)
async def test_requests_the_teacher_would_refuse_are_not_sent(changes, error):
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        with pytest.raises(error):
            await client.score(replace(REQUEST, **changes))
    assert not teacher.scores


async def test_one_deadline_stands_over_a_hanging_call():
    teacher = FakeTeacher()
    async with connected(teacher, timeout_s=0.3) as client:
        teacher.script.append(Fault(after_chunks=1, hang=True))
        with pytest.raises(DeadlineExceededError):
            await client.score(REQUEST)
        await asyncio.wait_for(teacher.cancelled.wait(), 5)


async def test_one_deadline_stands_over_all_attempts():
    teacher = FakeTeacher()
    async with connected(teacher, timeout_s=1.5) as client:
        teacher.script.extend([Fault(error=OverloadedError("full"))] * 5000)
        with pytest.raises(DeadlineExceededError, match="full") as raised:
            await client.score(REQUEST)
    assert isinstance(raised.value.__cause__, OverloadedError)
    attempts = raised.value.details["attempts"]  # the deadline may cut the last one short on its way
    assert isinstance(attempts, int)
    assert attempts - 1 <= len(teacher.scores) <= attempts
    assert attempts > 1


async def test_cancelling_a_call_cancels_it_in_the_service():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(hang=True))
        call = asyncio.create_task(client.score(REQUEST))
        while not teacher.scores:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(teacher.cancelled.wait(), 5)


async def test_closing_a_stream_early_cancels_it_in_the_service():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(after_chunks=1, hang=True))
        stream = client.stream(REQUEST)
        await anext(stream)
        await stream.aclose()
        await asyncio.wait_for(teacher.cancelled.wait(), 5)


async def test_closing_the_client_ends_its_calls():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.append(Fault(hang=True))
        call = asyncio.create_task(client.score(REQUEST))
        while not teacher.scores:
            await asyncio.sleep(0.01)
        await client.close()
        with pytest.raises(RequestCancelledError):
            await call
        with pytest.raises(RequestCancelledError, match="not connected"):
            await client.score(REQUEST)
        await client.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(hang=True),
        Fault(error=OverloadedError("full", retry_after_s=0.2)),
        Fault(status=grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_closing_the_client_ends_what_waits(fault):
    """For a handshake, for a backoff, and for a handshake after a failure."""
    teacher = FakeTeacher()
    async with serving(teacher) as port:
        client = TeacherClient(f"127.0.0.1:{port}", retry=QUICK)
        await client.connect(make_student())
        teacher.script.append(fault)
        teacher.greeting_faults.append(Fault(hang=True))
        calls = [asyncio.create_task(client.score(REQUEST)) for _ in range(3)]
        while not teacher.scores:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await client.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert any(isinstance(result, RequestCancelledError) for result in results)
    assert all(isinstance(result, RequestCancelledError | ScoreResult) for result in results)


async def test_a_failing_handshake_is_shared_and_made_again():
    teacher = FakeTeacher()
    async with connected(teacher) as client:
        teacher.script.extend([Fault(status=grpc.StatusCode.UNAVAILABLE)] * 10)
        teacher.greeting_faults.extend([Fault(status=grpc.StatusCode.UNAVAILABLE)] * 2)
        results = await asyncio.gather(*(client.score(REQUEST) for _ in range(10)))
        for result in results:
            assert_all_rows(result.rows)
    assert teacher.registrations == 1
    assert teacher.greetings < 10


async def test_a_caller_that_gives_up_leaves_the_handshake_to_the_others():
    teacher = FakeTeacher()
    async with serving(teacher) as port, TeacherClient(f"127.0.0.1:{port}", retry=QUICK) as client:
        await client.connect(make_student())
        teacher.script.append(Fault(status=grpc.StatusCode.UNAVAILABLE))
        first, second = (asyncio.create_task(client.score(REQUEST)) for _ in range(2))
        while teacher.greetings < 2:
            await asyncio.sleep(0.001)
        first.cancel()
        assert_all_rows((await second).rows)


async def test_messages_may_be_larger_than_the_default_of_grpc():
    async with connected(FakeTeacher(notes=("x" * 5 * 2**20,))) as client:
        result = await client.score(REQUEST)
    assert len(result.notes[0]) == 5 * 2**20


@pytest.mark.parametrize(
    ("version", "own", "compatible"),
    [
        ("1.2.3", "1.9.0", True),
        ("1.2.3", "2.2.3", False),
        ("0.1.0", "0.1.7", True),
        ("0.1.0", "0.2.0", False),
        ("0.1.0", "1.1.0", False),
        ("", "0.1.0", False),
        ("10.0.0", "1.0.0", False),
    ],
)
def test_versions(version, own, compatible):
    with nullcontext() if compatible else pytest.raises(TeacherMismatchError):
        check_version(version, own)


@pytest.mark.parametrize("target", ["http://host:1", "https://host:1"])
def test_an_http_address_is_refused_with_the_reason(target):
    with pytest.raises(InvalidConfigError, match="gRPC port"):
        TeacherClient(target)


@pytest.mark.parametrize(
    "target", ["", "host", "host:", "host:0", "host:70000", "ftp://host:1", "host:1/path", "a b:1"]
)
def test_other_addresses_are_refused(target):
    with pytest.raises(InvalidConfigError):
        TeacherClient(target)


@pytest.mark.parametrize("target", ["host:1", "grpc://host:1", "grpcs://host:1/", "[::1]:50051", "10.0.0.1:65535"])
def test_addresses(target):
    TeacherClient(target)


async def test_a_client_serves_one_student():
    async with connected(FakeTeacher()) as client:
        with pytest.raises(InvalidConfigError, match="already connected"):
            await client.connect(make_student("another"))


def test_timeouts_must_be_positive():
    with pytest.raises(InvalidConfigError):
        TeacherClient("host:1", timeout_s=0)
