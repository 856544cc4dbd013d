"""The log of calls: one line each, in both forms, with the id that the caller sees, and nothing that is secret."""

import io
import json
import logging

import grpc
import httpx
import pytest

from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.client import ClientCredentials, TeacherClient
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import InternalError, TokbridgeError
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.observability.log_format import LogFormat, formatter
from tokbridge_teacher.preparation import RequestPreparer

SECRET = "the dragon sleeps under the third bridge"
KEY = "sk-never-in-any-log"


@pytest.fixture
def log():
    """What a service writes, as JSON lines."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter(LogFormat.JSON))
    handler.addFilter(lambda record: not record.name.startswith("http"))  # the client that the tests call with
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def lines(log: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def calls(log: io.StringIO) -> list[dict]:
    return [line for line in lines(log) if "call" in line]


async def test_one_line_a_call_with_its_facts(built_teacher, student_registration, student_profile, log):
    async with served_over_grpc(built_teacher.service) as target, TeacherClient(target, max_divergence=None) as client:
        await client.connect(student_registration)
        result = await client.score(request_for(student_profile, request_id="step-7"))
    register, score = calls(log)
    assert (register["call"], register["outcome"], register["protocol"]) == ("register", "ok", "grpc")
    assert (score["call"], score["request_id"], score["outcome"], score["reason"]) == ("score", "step-7", "ok", "")
    assert score["caller"] == "anonymous"
    assert score["student"] == student_registration.student_id
    assert score["tokens"] == result.prompt_tokens + result.content_tokens
    assert score["rows"] == result.rows.num_rows
    assert score["wire_bytes"] > 0
    stages = [score[f"{stage}_seconds"] for stage in ("prepare", "queue", "encode")]
    assert all(0 < seconds < score["seconds"] for seconds in stages)
    assert score["level"] == "INFO"
    assert score["time"].startswith("20")


async def test_neither_conversations_nor_keys_are_logged(built_teacher, student_registration, student_profile, log):
    service = built_teacher.service
    request = request_for(
        student_profile, SECRET, messages=[{"role": "user", "content": SECRET}], tools=[{"name": SECRET}]
    )
    credentials = ClientCredentials(api_key=KEY)
    async with (
        served_over_grpc(service) as target,
        TeacherClient(target, credentials=credentials, max_divergence=None) as client,
    ):
        await client.connect(student_registration)
        await client.score(request)
        with pytest.raises(TokbridgeError):
            await client.score(request_for(student_profile, SECRET, stop_id=0))
        with pytest.raises(TokbridgeError):
            await client.score(
                request_for(student_profile, SECRET, messages=[{"role": "user", "content": SECRET * 60}])
            )
    with served_over_http(service) as url, httpx.Client(base_url=url) as http:
        http.post("/v1/score", content=SECRET.encode(), headers={"authorization": f"Bearer {KEY}"})
        http.post("/v1/score", json={"student_id": SECRET, SECRET: SECRET})
        http.get(f"/{SECRET}")
        body = {"student_id": SECRET, "messages": list(request.messages), "response": "", "token_ids": [], "stop_id": 0}
        assert http.post("/v1/score", json=body).status_code == 404
    assert len(calls(log)) == 7
    assert SECRET not in log.getvalue()
    assert KEY not in log.getvalue()


async def test_an_internal_fault_leaves_its_place_but_no_text(
    built_teacher, student_registration, student_profile, log, monkeypatch
):
    def fail(*_):
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"cannot render {SECRET!r}") from error

    async with (
        served_over_grpc(built_teacher.service) as target,
        TeacherClient(target, max_divergence=None) as client,
    ):
        await client.connect(student_registration)
        monkeypatch.setattr(RequestPreparer, "prepare", fail)
        with pytest.raises(InternalError) as raised:
            await client.score(request_for(student_profile, request_id="broken-1"))
    assert raised.value.details["request_id"] == "broken-1"
    (fault,) = [line["message"] for line in lines(log) if line["level"] == "ERROR"]
    assert "broken-1" in fault
    assert "builtins.ValueError" in fault
    assert "builtins.KeyError" in fault
    assert "in fail" in fault
    assert SECRET not in log.getvalue()
    assert (calls(log)[-1]["outcome"], calls(log)[-1]["level"]) == ("failed", "WARNING")


async def test_the_id_of_a_grpc_call_is_in_its_answer_its_error_and_its_line(
    built_teacher, student_registration, student_profile, log
):
    async with (
        served_over_grpc(built_teacher.service) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        stub = teacher_pb2_grpc.TeacherStub(channel)
        named = [("x-request-id", "mine-1")]
        for call in (
            stub.GetTeacher(teacher_pb2.GetTeacherRequest(), metadata=named),
            stub.RegisterStudent(iter(student_registration.to_messages()), metadata=named),
        ):
            await call
            assert dict(await call.trailing_metadata())["x-request-id"] == "mine-1"
        request = request_for(student_profile, request_id="").to_proto(student_registration.student_id)
        call = stub.Score(request, metadata=named)
        assert [message async for message in call]
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine-1"
        unknown = request_for(student_profile, request_id="").to_proto("nobody")
        for metadata, expected in (([("x-request-id", "mine-2")], "mine-2"), ([("x-request-id", "not valid")], None)):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await anext(aiter(stub.Score(unknown, metadata=metadata)))
            trailers = dict(raised.value.trailing_metadata())
            sent = error_of(teacher_pb2.ErrorDetail.FromString(trailers[ERROR_TRAILER_KEY])).details["request_id"]
            assert sent == trailers["x-request-id"] == calls(log)[-1]["request_id"]
            assert sent == (expected or sent)
            assert sent != "not valid"
    assert [line["request_id"] for line in calls(log)][:3] == ["mine-1", "mine-1", "mine-2"]


def test_the_id_of_an_http_call_is_in_its_answer_its_error_and_its_line(built_teacher, log):
    with served_over_http(built_teacher.service, max_message_bytes=1 << 17) as url, httpx.Client(base_url=url) as http:
        named = {"x-request-id": "mine-3"}
        for path in ("/v1/teacher", "/healthz", "/metrics", "/nowhere"):
            assert http.get(path, headers=named).headers["x-request-id"] == "mine-3"
        refused = http.post("/v1/score", content=b"{", headers=named)
        assert refused.headers["x-request-id"] == refused.json()["request_id"] == "mine-3"
        assert calls(log)[-1]["request_id"] == "mine-3"
        large = http.post("/v1/score", content=b"a" * (1 << 18), headers=named)
        assert large.headers["x-request-id"] == large.json()["request_id"] == "mine-3"
        created = http.post("/v1/students", content=b"{")
        assert created.headers["x-request-id"] == created.json()["request_id"] == calls(log)[-1]["request_id"] != ""
        assert http.get("/healthz", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"


def test_text_lines_hold_the_same_fields():
    record = logging.makeLogRecord({"msg": "score ok", "levelname": "INFO", "name": "x", "request_id": "r1", "rows": 3})
    record.caller, record.reason = "team-a", ""
    line = formatter(LogFormat.TEXT).format(record)
    assert line.endswith("INFO x: score ok request_id=r1 caller=team-a rows=3")
