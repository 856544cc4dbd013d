"""What a service promises under load, through real sockets: admission, deadlines, cancellation, slow readers."""

import asyncio
import socket
import threading

import grpc
import httpx
import pytest

from support.gated_teacher import WAIT_S, GatedTeacher, becomes, gated_teacher
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import OverloadedError
from tokbridge.registration import StudentRegistration
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.protocols.http_protobuf import MEDIA_TYPE

PLACES = 6


@pytest.fixture(scope="module")
def teacher(teacher_folder):
    with gated_teacher(teacher_folder, max_requests=PLACES, chunk_rows=8, piece_tokens=64) as teacher:
        yield teacher


@pytest.fixture(autouse=True)
async def _empty(teacher):
    teacher.gate.open.set()
    yield
    teacher.gate.open.set()
    assert await becomes(lambda: teacher.held() == 0)


def cancellations(reason: str) -> str:
    return f'tokbridge_cancellations_total{{reason="{reason}"}}'


class Connection:
    """A stub of a served teacher at which the student is registered."""

    def __init__(self, teacher: GatedTeacher, registration, profile) -> None:
        self._served = served_over_grpc(teacher.built.service)
        self._registration = registration
        self._profile = profile

    async def __aenter__(self) -> "Connection":
        self._channel = grpc.aio.insecure_channel(await self._served.__aenter__())
        self.stub = teacher_pb2_grpc.TeacherStub(self._channel)
        await self.stub.RegisterStudent(iter(self._registration.to_messages()))
        return self

    async def __aexit__(self, *error) -> None:
        await self._channel.close()
        await self._served.__aexit__(*error)

    def message(self, text: str = "a response of some words", **changes) -> teacher_pb2.ScoreRequest:
        return request_for(self._profile, text, **changes).to_proto(self._registration.student_id)

    def call(self, text: str = "a response of some words", timeout: float | None = None, **changes):
        return self.stub.Score(self.message(text, **changes), timeout=timeout)


@pytest.fixture
async def connection(teacher, student_registration, student_profile):
    async with Connection(teacher, student_registration, student_profile) as connection:
        yield connection


async def read(call) -> list[teacher_pb2.ScoreResponse]:
    return [part async for part in call]


async def outcome(call) -> grpc.StatusCode:
    try:
        await read(call)
    except grpc.aio.AioRpcError as error:
        return error.code()
    except asyncio.CancelledError:
        return grpc.StatusCode.CANCELLED
    return grpc.StatusCode.OK


async def admitted_in_a_wave(connection: Connection, teacher: GatedTeacher) -> int:
    """How many of many calls made while nothing can finish are taken; all of them are let through afterwards."""
    teacher.gate.open.clear()
    calls = [asyncio.ensure_future(outcome(connection.call())) for _ in range(3 * PLACES)]
    assert await becomes(lambda: sum(call.done() for call in calls) >= 2 * PLACES)
    refused = [call.result() for call in calls if call.done()]
    assert set(refused) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    teacher.gate.open.set()
    outcomes = await asyncio.gather(*calls)
    assert await becomes(lambda: teacher.held() == 0)
    return outcomes.count(grpc.StatusCode.OK)


async def test_a_second_wave_meets_the_same_limit_whatever_came_before(connection, teacher, student_profile):
    assert await admitted_in_a_wave(connection, teacher) == PLACES
    for _ in range(4):
        calls = [
            connection.call(),
            connection.call(timeout=0.01),
            connection.call(timeout=0.05),
            connection.call(top_k=60_000),
            connection.call("zq" * 3000),
            connection.call(),
        ]
        outcomes = [asyncio.ensure_future(outcome(call)) for call in calls]
        await asyncio.sleep(0.01)
        calls[-1].cancel()
        await asyncio.gather(*outcomes)
    assert await becomes(lambda: teacher.held() == 0)
    assert await admitted_in_a_wave(connection, teacher) == PLACES


async def test_a_refusal_says_when_to_come_back_in_both_protocols(
    connection, teacher, student_profile, student_registration
):
    teacher.gate.open.clear()
    calls = [asyncio.ensure_future(outcome(connection.call())) for _ in range(PLACES)]
    assert await becomes(lambda: teacher.held() == PLACES)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await read(connection.call())
    trailers = dict(refused.value.trailing_metadata())
    error = error_of(teacher_pb2.ErrorDetail.FromString(trailers[ERROR_TRAILER_KEY]))
    assert isinstance(error, OverloadedError)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(trailers["grpc-retry-pushback-ms"]) >= 1000 * error.details["retry_after_s"] > 0
    with served_over_http(teacher.built.service) as url:
        body = request_for(student_profile).to_proto(student_registration.student_id).SerializeToString()
        answer = await asyncio.to_thread(
            httpx.post, f"{url}/v1/score", content=body, headers={"content-type": MEDIA_TYPE}
        )
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    teacher.gate.open.set()
    assert set(await asyncio.gather(*calls)) == {grpc.StatusCode.OK}


async def test_dead_requests_cost_nothing_and_are_counted(teacher_folder, student_registration, student_profile):
    """200 requests with 50 ms deadlines while the model is held, then one normal request."""
    with gated_teacher(teacher_folder, chunk_rows=8) as teacher:
        async with Connection(teacher, student_registration, student_profile) as connection:
            await read(connection.call())
            teacher.gate.open.clear()
            message = connection.message("word " * 40)
            for _ in range(20):
                calls = [outcome(connection.stub.Score(message, timeout=0.05)) for _ in range(10)]
                assert set(await asyncio.gather(*calls)) == {grpc.StatusCode.DEADLINE_EXCEEDED}
            assert await becomes(lambda: teacher.held() == 0)
            begun = len(teacher.gate.jobs)
            assert begun < 200
            teacher.gate.open.set()
            parts = await asyncio.wait_for(read(connection.call()), WAIT_S)
            assert parts[-1].HasField("trailer")
            assert len(teacher.gate.jobs) == begun + 1
            reasons = {reason: teacher.metric(cancellations(reason)) for reason in ("deadline", "client_gone")}
            assert 0 < reasons["deadline"] <= 200  # on a slow machine many expire before they arrive
            assert reasons["client_gone"] == 0


async def test_a_client_that_goes_away_is_taken_off_the_queue_and_counted_as_gone(connection, teacher):
    before = teacher.metric(cancellations("client_gone"))
    scheduler = teacher.built.scheduler
    teacher.gate.open.clear()
    teacher.gate.entered.clear()
    calls = [connection.call(timeout=10 * WAIT_S)]
    running = [asyncio.ensure_future(outcome(calls[0]))]
    assert await becomes(teacher.gate.entered.is_set)
    calls += [connection.call(timeout=10 * WAIT_S) for _ in range(2)]
    running += [asyncio.ensure_future(outcome(call)) for call in calls[1:]]
    assert await becomes(lambda: scheduler.state().queued_requests == 2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*running)
    # The model still stands at its gate: what waited is gone without it, and what runs knows.
    assert await becomes(lambda: scheduler.state().queued_requests == 0)
    assert await becomes(teacher.gate.jobs[-1].cancelled)
    assert await becomes(lambda: teacher.held() == 0)
    assert teacher.metric(cancellations("client_gone")) - before == 3


async def test_an_http_client_that_hangs_up_before_the_first_row_frees_its_place(
    teacher, student_profile, student_registration
):
    message = request_for(student_profile, "word " * 50).to_proto(student_registration.student_id)
    body = message.SerializeToString()
    with served_over_http(teacher.built.service) as url:
        async with Connection(teacher, student_registration, student_profile):
            pass
        for accept in (MEDIA_TYPE, "application/json"):
            teacher.gate.open.clear()
            before = teacher.metric(cancellations("client_gone"))
            with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as raw:
                head = f"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-type: {MEDIA_TYPE}\r\naccept: {accept}\r\n"
                raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                assert await becomes(lambda: teacher.held() == 1)
            assert await becomes(lambda: teacher.held() == 0), accept
            assert teacher.metric(cancellations("client_gone")) == before + 1


async def test_a_deadline_stops_the_model_at_its_next_step(connection, teacher):
    """The request is running, not waiting, when its time is over."""
    teacher.gate.open.clear()
    teacher.gate.entered.clear()
    call = asyncio.ensure_future(outcome(connection.call("word " * 200, timeout=0.5)))
    assert await becomes(teacher.gate.entered.is_set)
    job = teacher.gate.jobs[-1]
    assert await call is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await becomes(job.cancelled)
    chunks = 0

    def count(_):
        nonlocal chunks
        chunks += 1

    object.__setattr__(job, "emit", count)
    teacher.gate.open.set()
    assert await becomes(lambda: teacher.built.scheduler.state().running_requests == 0)
    assert chunks == 0


async def test_short_responses_overtake_a_long_one(teacher_folder, student_registration, student_profile):
    """All wait when the model begins; the long one is first in line, and takes fifty pieces."""
    with gated_teacher(teacher_folder, batch_tokens=256, piece_tokens=64, chunk_rows=64) as teacher:
        async with Connection(teacher, student_registration, student_profile) as connection:
            order: list[str] = []

            async def score(name: str, message: teacher_pb2.ScoreRequest) -> None:
                parts = await read(connection.stub.Score(message))
                assert parts[-1].HasField("trailer")
                order.append(name)

            teacher.gate.open.clear()
            long = asyncio.ensure_future(score("long", connection.message("six " * 1500)))
            assert await becomes(teacher.gate.entered.is_set)
            short = [asyncio.ensure_future(score("short", connection.message())) for _ in range(8)]
            assert await becomes(lambda: teacher.built.scheduler.state().queued_requests == 8)
            teacher.gate.open.set()
            await asyncio.gather(long, *short)
            assert order == ["short"] * 8 + ["long"]


async def test_score_requests_do_not_wait_for_registrations(teacher, connection, student_registration):
    service, go_on = teacher.built.service, threading.Event()

    def slow() -> StudentRegistration:  # as a large vocabulary that is paired
        assert go_on.wait(WAIT_S)
        return student_registration

    registrations = [asyncio.ensure_future(service.register(slow)) for _ in range(4)]
    try:
        assert await becomes(lambda: teacher.built.workers.registrations.held().requests == 4)
        assert (await asyncio.wait_for(read(connection.call()), WAIT_S / 3))[-1].HasField("trailer")
        assert not any(registration.done() for registration in registrations)
    finally:
        go_on.set()
    assert all(registered.already_known for registered in await asyncio.gather(*registrations))


async def test_a_service_that_stops_registers_nobody(teacher, connection, student_registration):
    teacher.built.service.serving = False
    try:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await connection.stub.RegisterStudent(iter(student_registration.to_messages()))
    finally:
        teacher.built.service.serving = True
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
