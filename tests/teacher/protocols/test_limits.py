"""Everything that is refused for its size, encoding or slowness before it is read."""

import asyncio
import gzip
import json
import socket
import time
from dataclasses import replace

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.refused_requests import UNKNOWN_STUDENT_ID
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.error_mapping import ERROR_TRAILER_KEY, detail_of, error_of
from tokbridge.errors import ErrorCode, LimitExceededError
from tokbridge.registration import StudentRegistration
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge.vocabulary import ByteVocabulary
from tokbridge.vocabulary_wire import MAX_TOKEN_BYTES
from tokbridge_teacher.protocols.body_limits import BodyLimit
from tokbridge_teacher.protocols.grpc_health import MAX_WATCHERS
from tokbridge_teacher.protocols.http_connections import PromptCallers
from tokbridge_teacher.upload_budget import UploadBudget

MEBIBYTE = 1 << 20


@pytest.fixture
def small_limits(built_teacher, monkeypatch):
    limits = built_teacher.service.limits.model_copy(
        update={"max_messages": 3, "max_tools": 2, "max_template_arguments": 2}
    )
    monkeypatch.setattr(built_teacher.service, "limits", limits)


def typed(failure: grpc.aio.AioRpcError):
    return error_of(teacher_pb2.ErrorDetail.FromString(dict(failure.trailing_metadata())[ERROR_TRAILER_KEY]))


async def refusal(service, message: teacher_pb2.ScoreRequest):
    """The typed error of a score request over gRPC."""
    async with served_over_grpc(service) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in teacher_pb2_grpc.TeacherStub(channel).Score(message):
                pass
    return typed(refused.value)


TURN = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"messages": [TURN] * 4}, "max_messages"),
        ({"tools": [{}] * 3}, "max_tools"),
        ({"tools": [{"a": "x" * 1600}]}, "max_conversation_bytes"),
        ({"template_arguments": {"a": 1, "b": 2, "c": 3}}, "max_template_arguments"),
        ({"template_arguments": {"a": "x" * 1600}}, "max_conversation_bytes"),
        ({"student_tail": "<think>" * 300}, "max_conversation_bytes"),
        ({"messages": [{**TURN, "content": "é" * 800}]}, "max_conversation_bytes"),
        ({"messages": [{**TURN, "tool_calls": [{"function": {"name": "x" * 1600}}]}]}, "max_conversation_bytes"),
    ],
)
async def test_a_conversation_over_a_limit_is_refused_before_it_is_read(
    changes, name, built_teacher, small_limits, student_profile
):
    message = request_for(student_profile, **changes).to_proto(UNKNOWN_STUDENT_ID)
    error = await refusal(built_teacher.service, message)
    assert (error.code, error.details["name"]) == (ErrorCode.LIMIT_EXCEEDED, name)
    with served_over_http(built_teacher.service) as url:
        headers = {"content-type": "application/x-protobuf"}
        answer = httpx.post(f"{url}/v1/score", content=message.SerializeToString(), headers=headers)
    assert (answer.status_code, answer.json()["details"]["name"]) == (413, name)


async def test_a_long_text_that_is_not_json_is_refused_by_its_size(built_teacher, student_profile):
    """Nothing has looked into it, or it would be called malformed."""
    message = request_for(student_profile).to_proto(UNKNOWN_STUDENT_ID)
    message.tools_json = "[" * 2000
    assert (await refusal(built_teacher.service, message)).code is ErrorCode.LIMIT_EXCEEDED
    message.tools_json = "[" * 1000
    assert (await refusal(built_teacher.service, message)).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("request_id", ["a b", "a\n", "é", "x" * 256, "a/b", "a\x00"])
async def test_a_request_id_of_other_characters_is_refused(request_id, built_teacher, student_profile):
    message = request_for(student_profile).to_proto(UNKNOWN_STUDENT_ID)
    message.request_id = request_id
    error = await refusal(built_teacher.service, message)
    assert (error.code, error.details["field"]) == (ErrorCode.INVALID_REQUEST, "request_id")
    assert error.details["request_id"] != request_id


@pytest.mark.parametrize("text", ["x" * MEBIBYTE, "\u6771" * MEBIBYTE, "lone \ud800 surrogate"])
def test_what_a_caller_sent_cannot_swell_an_error_past_what_trailers_carry(text):
    """gRPC clients refuse trailers over 8 KiB, and lose the typed error with them."""
    error = LimitExceededError(text, name=text, limit=3)
    detail = detail_of(error, "r" * 255)
    # The message travels twice: percent-encoded as the status message, and in the detail.
    assert len(detail.SerializeToString()) + 3 * len(detail.message.encode()) < 8192
    assert (detail.message[:4], error_of(detail).details["limit"]) == (text[:4], 3)


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_grpc_messages_are_bounded_after_expansion(compression, built_teacher):
    small = teacher_pb2.ScoreRequest(response=b"\0" * (MEBIBYTE // 2))
    bomb = teacher_pb2.ScoreRequest(response=b"\0" * (16 * MEBIBYTE))
    assert len(gzip.compress(bomb.response)) < MEBIBYTE // 8
    async with (
        served_over_grpc(built_teacher.service, MEBIBYTE) as target,
        grpc.aio.insecure_channel(target, compression=compression) as channel,
    ):
        for message, status in (
            (small, grpc.StatusCode.OUT_OF_RANGE),
            (bomb, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in teacher_pb2_grpc.TeacherStub(channel).Score(message):
                    pass
            assert refused.value.code() is status


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, identity"])
def test_a_compressed_body_is_refused_unread(encoding, built_teacher):
    body = gzip.compress(b" " * (64 * MEBIBYTE))
    with served_over_http(built_teacher.service) as url:
        answer = httpx.post(f"{url}/v1/score", content=body, headers={"content-encoding": encoding})
        plain = httpx.post(f"{url}/v1/score", content=b"{}", headers={"content-encoding": "identity"})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert answer.json()["code"] == "invalid_request"
    assert plain.status_code == 400


def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(built_teacher, monkeypatch):
    monkeypatch.setattr("tokbridge.json_text.MAX_VALUES", 1000)
    with served_over_http(built_teacher.service) as url:
        answer = httpx.post(f"{url}/v1/score", content=b'{"token_ids": [' + b"1," * 1000 + b"1]}")
    assert answer.status_code == 400
    assert "more than 1000 values" in answer.json()["message"]


async def test_all_uploads_together_are_bounded_and_their_room_comes_back(built_teacher, student_registration):
    uploads = UploadBudget(MEBIBYTE)
    header = next(student_registration.to_messages())
    header.header.token_bytes_bytes = 64 << 10
    filler = [teacher_pb2.RegisterStudentRequest(chunk=b"x" * (4 << 10))] * 4

    async def hanging():
        yield header
        for message in filler:
            yield message
        await asyncio.Event().wait()

    async with (
        served_over_grpc(built_teacher.service, uploads=uploads) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        stub = teacher_pb2_grpc.TeacherStub(channel)
        calls = [stub.RegisterStudent(hanging()) for _ in range(80)]
        for _ in range(300):
            done = [call for call in calls if call.done()]
            if len(done) >= 16:
                break
            await asyncio.sleep(0.01)
        held = [call for call in calls if not call.done()]
        assert len(done) >= 16, "80 times 16 KiB are more than the MiB there is room for"
        assert uploads.held_bytes <= MEBIBYTE
        assert held
        for call in done:
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in held:
            call.cancel()
        for _ in range(300):
            if not uploads.held_bytes:
                break
            await asyncio.sleep(0.01)
        assert uploads.held_bytes == 0
        assert (await stub.RegisterStudent(iter(student_registration.to_messages()))).student_id
    assert uploads.held_bytes == 0


def test_http_bodies_share_the_room_for_uploads(built_teacher):
    uploads = UploadBudget(MEBIBYTE)
    with served_over_http(built_teacher.service, uploads=uploads) as url:
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as slow:
            slow.sendall(b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n" + b"x" * 800_000)
            for _ in range(300):
                if uploads.held_bytes == 800_000:
                    break
                time.sleep(0.01)
            assert uploads.held_bytes == 800_000
            full = httpx.post(f"{url}/v1/score", content=b"x" * 300_000)
            assert (full.status_code, full.json()["code"], full.headers["retry-after"]) == (429, "overloaded", "1")
            assert httpx.get(f"{url}/healthz").status_code == 200
        for _ in range(300):
            if not uploads.held_bytes:
                break
            time.sleep(0.01)
        assert httpx.post(f"{url}/v1/score", content=b"x" * 300_000).status_code == 400
    assert uploads.held_bytes == 0


async def test_a_body_that_does_not_end_in_time_is_refused():
    async def never(*_):
        await asyncio.Event().wait()

    sent = []

    async def send(message):
        sent.append(message)

    limit = BodyLimit(never, 100, UploadBudget(100), timeout_s=0.05)
    await limit({"type": "http", "headers": [], "method": "POST", "path": "/v1/score"}, never, send)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "deadline_exceeded"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-slow: "])
def test_a_header_that_does_not_end_in_time_closes_the_connection(sent, built_teacher, monkeypatch):
    monkeypatch.setattr(PromptCallers, "header_timeout_s", 0.3)
    with served_over_http(built_teacher.service) as url:
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=20) as slow:
            slow.sendall(sent)
            for _ in range(5):
                time.sleep(0.02)
                if sent:
                    slow.sendall(b"x")  # bytes that trickle in do not win time
            assert slow.recv(100) == b""
        with httpx.Client() as http:
            for _ in range(4):
                assert http.get(f"{url}/healthz").status_code == 200
                time.sleep(0.15)


async def test_calls_are_bounded_and_their_places_come_back(built_teacher):
    async with (
        served_over_grpc(built_teacher.service, max_calls=3) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        stub = teacher_pb2_grpc.TeacherStub(channel)

        async def hanging():
            await asyncio.Event().wait()
            yield

        calls = [stub.RegisterStudent(hanging()) for _ in range(3)]
        await asyncio.sleep(0.3)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetTeacher(teacher_pb2.GetTeacherRequest())
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert typed(refused.value).details["name"] == "max_calls"
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
        for call in calls:
            call.cancel()
        for _ in range(100):
            try:
                await stub.GetTeacher(teacher_pb2.GetTeacherRequest())
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
        assert await stub.GetTeacher(teacher_pb2.GetTeacherRequest())


async def registration_refusal(service, registration):
    async with served_over_grpc(service) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await teacher_pb2_grpc.TeacherStub(channel).RegisterStudent(iter(registration.to_messages()))
    return typed(refused.value)


async def test_a_token_of_too_many_bytes_is_refused(built_teacher, student_registration):
    tokens = (b"x" * (MAX_TOKEN_BYTES + 1), *student_registration.vocabulary.token_bytes[1:])
    registration = replace(student_registration, vocabulary=ByteVocabulary(tokens), tokenizer_json=None)
    error = await registration_refusal(built_teacher.service, registration)
    assert (error.code, error.details["name"]) == (ErrorCode.LIMIT_EXCEEDED, "token_bytes")


def swapped(registration: StudentRegistration) -> StudentRegistration:
    """Two content tokens in each other's place: the table is sound, and not the tokenizer's."""
    tokens = list(registration.vocabulary.token_bytes)
    tokens[40], tokens[41] = tokens[41], tokens[40]
    return replace(registration, vocabulary=ByteVocabulary(tuple(tokens)))


def shortened(registration: StudentRegistration) -> StudentRegistration:
    spec = json.loads(registration.tokenizer_json)
    kept = {piece: i for piece, i in spec["model"]["vocab"].items() if i < 300}
    merges = [merge for merge in spec["model"]["merges"] if "".join(merge) in kept]
    spec["model"] |= {"vocab": kept, "merges": merges}
    return replace(registration, tokenizer_json=json.dumps(spec))


def lengthened(registration: StudentRegistration) -> StudentRegistration:
    spec = json.loads(registration.tokenizer_json)
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": 100_000, "content": "<|new|>"})
    return replace(registration, tokenizer_json=json.dumps(spec))


@pytest.mark.parametrize("change", [swapped, shortened, lengthened])
async def test_a_tokenizer_of_another_vocabulary_is_refused(change, built_teacher, student_registration):
    """Once it was taken, and routing `bpe` was `greedy` in silence."""
    error = await registration_refusal(built_teacher.service, change(student_registration))
    assert error.code is ErrorCode.INVALID_VOCABULARY


def test_a_registration_in_json_is_held_to_the_same_sizes(
    built_teacher, student_folder, student_profile, student_registration, monkeypatch
):
    text = (student_folder / "tokenizer.json").read_text()
    spec = json.loads(text)
    spec["added_tokens"].append({**spec["added_tokens"][-1], "id": 365, "content": "y" * (MAX_TOKEN_BYTES + 1)})
    body = {"name": "sizes", "tokenizer_json": text, "stop_ids": [student_profile.turn_end_id]}
    with served_over_http(built_teacher.service) as url:
        answer = httpx.post(f"{url}/v1/students", json={**body, "tokenizer_json": json.dumps(spec)})
        assert (answer.status_code, answer.json()["details"].get("name")) == (413, "token_bytes")
        small = replace(built_teacher.service.contract_limits, max_vocabulary_bytes=len(text) + 100)
        monkeypatch.setattr(built_teacher.service, "contract_limits", small)
        answer = httpx.post(f"{url}/v1/students", json=body)
        assert (answer.status_code, answer.json()["details"]["name"]) == (413, "max_vocabulary_bytes")


async def test_an_upload_is_bounded_by_what_it_expands_to(built_teacher, student_registration, monkeypatch):
    small = replace(built_teacher.service.contract_limits, max_vocabulary_bytes=1 << 16)
    monkeypatch.setattr(built_teacher.service, "contract_limits", small)
    padded = replace(student_registration, tokenizer_json=student_registration.tokenizer_json + " " * (1 << 16))
    error = await registration_refusal(built_teacher.service, padded)
    assert error.code is ErrorCode.LIMIT_EXCEEDED


async def test_a_registration_of_empty_messages_ends_at_the_first(built_teacher):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:

        async def endless():
            while True:
                yield teacher_pb2.RegisterStudentRequest()

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await teacher_pb2_grpc.TeacherStub(channel).RegisterStudent(endless(), timeout=20)
    assert typed(refused.value).code is ErrorCode.INVALID_REQUEST


async def test_watchers_of_health_need_no_key_and_leave_calls_their_places(built_teacher):
    places = MAX_WATCHERS + 2
    async with (
        served_over_grpc(built_teacher.service, max_calls=places) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        watchers = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(2 * places)]
        async with asyncio.timeout(20):
            while sum(watcher.done() for watcher in watchers) < 2 * places - MAX_WATCHERS:
                await asyncio.sleep(0.01)
            answer = await teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest())
        assert answer.model
        for watcher in watchers:
            watcher.cancel()
        await asyncio.sleep(0)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
