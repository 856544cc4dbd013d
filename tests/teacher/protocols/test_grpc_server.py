import asyncio
import json
import socket
from dataclasses import replace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from support.malformed_tokenizers import malformed
from support.refused_requests import REFUSED, UNKNOWN_STUDENT_ID
from support.requests_for import request_for
from support.served import served_over_grpc
from tokbridge import wire
from tokbridge.client import TeacherClient
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import ErrorCode, InternalError, InvalidConfigError, ShuttingDownError
from tokbridge.modes import Spanning
from tokbridge.targets import RowCase
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.preparation import RequestPreparer
from tokbridge_teacher.protocols.grpc_errors import STATUS_BY_CODE
from tokbridge_teacher.protocols.grpc_server import GrpcServer

SERVED = "tokbridge.v1.Teacher"


def to_message(request, student_id) -> teacher_pb2.ScoreRequest:
    """The message without the client's own checks, as another client might send it."""
    harmless = replace(
        request, messages=[{"role": "user", "content": "x"}], spanning=Spanning.REALIZED, mass=0.0, stop_id=1
    )
    message = harmless.to_proto(student_id)
    del message.messages[:]
    for turn in request.messages:
        message.messages.add(role=turn["role"], content=turn["content"])
    message.spanning = teacher_pb2.SPANNING_LOOKAHEAD if request.spanning == "lookahead" else message.spanning
    message.mass = request.mass
    if request.stop_id is None:
        message.ClearField("stop_id")
    else:
        message.stop_id = request.stop_id
    return message


async def register(stub, registration) -> teacher_pb2.RegisterStudentResponse:
    return await stub.RegisterStudent(iter(registration.to_messages()))


def error_in(error: grpc.aio.AioRpcError):
    detail = teacher_pb2.ErrorDetail.FromString(dict(error.trailing_metadata())[ERROR_TRAILER_KEY])
    return error_of(detail)


@malformed
async def test_a_malformed_tokenizer_is_refused_at_registration(change, built_teacher, student_registration):
    spec = json.loads(student_registration.tokenizer_json)
    registration = replace(student_registration, tokenizer_json=json.dumps({**spec, **change}))
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await register(teacher_pb2_grpc.TeacherStub(channel), registration)
    assert error_in(refused.value).code is ErrorCode.INVALID_VOCABULARY


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
async def test_every_refusal_is_typed(case, built_teacher, student_profile, student_registration):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await register(stub, student_registration)
        student_id = student_registration.student_id if case.student_known else UNKNOWN_STUDENT_ID
        request = case.build(student_profile)
        message = (
            to_message(request, student_id)
            if not request.template_arguments
            else request_with_arguments(request, student_id)
        )
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Score(message):
                pass
    error = error_in(refused.value)
    assert error.code is case.code
    assert refused.value.code() is STATUS_BY_CODE.get(case.code, grpc.StatusCode.INVALID_ARGUMENT)
    assert {name: error.details[name] for name in case.details} == case.details
    assert error.details["request_id"] == "test-request"
    assert case.says in error.message


def request_with_arguments(request, student_id) -> teacher_pb2.ScoreRequest:
    message = to_message(replace(request, template_arguments={}), student_id)
    message.template_arguments_json = '{"chat_template": "{{ 1 }}"}'
    return message


def test_every_error_code_has_a_status():
    assert set(STATUS_BY_CODE) <= set(ErrorCode)
    assert grpc.StatusCode.OK not in STATUS_BY_CODE.values()


async def test_rows_and_trailer_agree(built_teacher, student_profile, student_registration):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await register(stub, student_registration)
        message = request_for(student_profile).to_proto(student_registration.student_id)
        answers = [answer async for answer in stub.Score(message)]
    *parts, last = answers
    assert len(parts) > 1
    trailer = last.trailer
    rows = [wire.decode_rows(part.rows) for part in parts]
    assert [part.first_row for part in rows] == np.cumsum([0, *(part.num_rows for part in rows[:-1])]).tolist()
    assert trailer.num_rows == sum(part.num_rows for part in rows) == len(message.token_ids) // 4 + 1
    checksum = 0
    for part in parts:
        checksum = wire.checksum(part.rows, checksum)
    assert trailer.checksum == checksum
    cases = np.concatenate([part.cases for part in rows])
    assert dict(trailer.cases) == {RowCase(c).name.lower(): int((cases == c).sum()) for c in np.unique(cases)}
    assert trailer.timings.total_seconds >= trailer.timings.compute_seconds


async def test_only_a_stop_token_gives_one_stop_row(built_teacher, student_profile, student_registration):
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        result = await client.score(request_for(student_profile, ""))
    assert result.rows.cases.tolist() == [RowCase.STOP]
    assert result.rows.emitted_log_prob[0] == pytest.approx(result.stop_log_prob, abs=1e-4)


async def test_many_requests_at_once_share_their_prompt(built_teacher, student_profile, student_registration):
    texts = [f"{n} is a number, and {n * n} its square" for n in range(24)]
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        requests = [request_for(student_profile, text, request_id=f"r{n}") for n, text in enumerate(texts)]
        together = await asyncio.gather(*map(client.score, requests))
        alone = [await client.score(request) for request in requests[:3]]
    assert any(result.shared_prompt_tokens > 0 for result in together)
    for a, b in zip(together, alone, strict=False):
        np.testing.assert_allclose(a.rows.emitted_log_prob, b.rows.emitted_log_prob, atol=1e-4)
    state = built_teacher.scheduler.state()
    assert (state.queued_requests, state.running_requests) == (0, 0)


async def test_a_caller_that_goes_away_is_taken_off_the_queue(built_teacher, student_profile, student_registration):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await register(stub, student_registration)
        message = request_for(student_profile, "word " * 90).to_proto(student_registration.student_id)
        calls = [stub.Score(message) for _ in range(12)]
        await calls[0].read()
        for call in calls:
            call.cancel()
        for _ in range(500):
            state = built_teacher.scheduler.state()
            if state.queued_requests + state.running_requests == 0:
                break
            await asyncio.sleep(0.01)
    assert (state.queued_requests, state.running_requests) == (0, 0)


async def test_an_unexpected_fault_is_internal_and_keeps_its_cause_in_the_log(
    built_teacher, student_profile, student_registration, monkeypatch, caplog
):
    def explode(*_):
        raise KeyError("the secret")

    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        monkeypatch.setattr(RequestPreparer, "prepare", explode)
        with pytest.raises(InternalError) as raised:
            await client.score(request_for(student_profile, request_id="faulty-1"))
    assert "secret" not in raised.value.message
    assert "faulty-1" in raised.value.message
    assert "the secret" in caplog.text


async def test_registration_is_idempotent_and_answers_with_statistics(built_teacher, student_registration):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        first, second = await register(stub, student_registration), await register(stub, student_registration)
    assert second.already_known
    assert first.student_id == second.student_id == student_registration.student_id
    assert [statistics.routing for statistics in second.statistics] == [1, 2]
    for statistics in second.statistics:
        parts = statistics.identical + statistics.shortened + statistics.unmapped
        assert parts == statistics.teacher_content_tokens


async def test_health_follows_readiness_and_reflection_lists_the_service(built_teacher):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVED))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        async for listing in reflection.ServerReflectionInfo(iter([question])):
            names = {service.name for service in listing.list_services_response.service}
            assert SERVED in names


async def test_a_service_that_is_not_ready_refuses(built_teacher, student_profile, student_registration, monkeypatch):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await register(stub, student_registration)
        monkeypatch.setattr(built_teacher.service, "serving", False)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Score(request_for(student_profile).to_proto(student_registration.student_id)):
                pass
    assert isinstance(error_in(refused.value), ShuttingDownError)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_message_above_the_limit_is_refused(built_teacher):
    async with served_over_grpc(built_teacher.service, 1 << 16) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Score(teacher_pb2.ScoreRequest(response=b"a" * (1 << 17))):
                pass
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_address_that_is_taken_is_a_fault_of_the_settings(built_teacher):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidConfigError, match="Cannot listen"):
        GrpcServer(built_teacher.service, host="127.0.0.1", port=taken.getsockname()[1], max_message_bytes=1 << 20)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
async def test_an_ipv6_address_is_listened_on(built_teacher):
    server = GrpcServer(built_teacher.service, host="::1", port=0, max_message_bytes=1 << 20)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"[::1]:{server.port}") as channel:
            answer = await teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest(), timeout=10)
        assert answer.model == built_teacher.service.describe().model
    finally:
        await server.stop(1)
