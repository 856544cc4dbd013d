import asyncio
import io
import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from google.protobuf import proto

from support.malformed_tokenizers import malformed
from support.refused_requests import REFUSED, UNKNOWN_STUDENT_ID
from support.requests_for import request_for
from support.scrapes import sum_of_series
from support.served import served_over_http
from tokbridge import wire
from tokbridge.errors import ErrorCode
from tokbridge.v1 import teacher_pb2
from tokbridge_teacher.protocols.http_errors import STATUS_BY_CODE
from tokbridge_teacher.protocols.http_protobuf import MEDIA_TYPE

PROTOBUF = {"content-type": MEDIA_TYPE, "accept": MEDIA_TYPE}


@pytest.fixture(scope="module")
def url(built_teacher) -> Iterator[str]:
    with served_over_http(built_teacher.service, max_message_bytes=1 << 20) as url:
        yield url


@pytest.fixture
def http(url) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def student_id(url, student_registration) -> str:
    body = b"".join(map(delimited, student_registration.to_messages()))
    answer = httpx.post(f"{url}/v1/students", content=body, headers=PROTOBUF, timeout=30)
    assert answer.status_code == 200
    return teacher_pb2.RegisterStudentResponse.FromString(answer.content).student_id


def delimited(message) -> bytes:
    buffer = io.BytesIO()
    proto.serialize_length_prefixed(message, buffer)
    return buffer.getvalue()


def json_body(request, student_id: str) -> dict:
    return {
        "student_id": student_id,
        "messages": list(request.messages),
        "response": request.response.decode(),
        "token_ids": request.token_ids.tolist(),
        "stop_id": request.stop_id,
        "template_arguments": dict(request.template_arguments),
        "routing": str(request.routing),
        "spanning": str(request.spanning),
        "top_k": request.top_k,
        "mass": request.mass,
    }


@pytest.mark.parametrize("accept", ["application/json", MEDIA_TYPE])
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_every_refusal_is_typed(case, accept, http, student_id, student_profile):
    body = json_body(case.build(student_profile), student_id if case.student_known else UNKNOWN_STUDENT_ID)
    answer = http.post("/v1/score", json=body, headers={"x-request-id": "people-1", "accept": accept})
    error = answer.json()
    assert error["code"] == case.code
    assert answer.status_code == STATUS_BY_CODE.get(case.code, 400)
    assert {name: error["details"][name] for name in case.details} == {k: str(v) for k, v in case.details.items()}
    assert case.says in error["message"]
    assert error["request_id"] == "people-1"


def test_every_error_code_has_a_status():
    assert set(STATUS_BY_CODE) <= set(ErrorCode)
    assert all(400 <= status < 600 for status in STATUS_BY_CODE.values())


def test_json_and_protobuf_say_the_same(http, student_id, student_profile):
    request = request_for(student_profile)
    people = http.post("/v1/score", json=json_body(request, student_id)).json()
    machines = http.post("/v1/score", content=request.to_proto(student_id).SerializeToString(), headers=PROTOBUF)
    stream = io.BytesIO(machines.content)
    messages = []
    while message := proto.parse_length_prefixed(teacher_pb2.ScoreResponse, stream):
        messages.append(message)
    rows = [row for message in messages[:-1] for row in split(wire.decode_rows(message.rows))]
    assert messages[-1].trailer.num_rows == len(rows) == len(people["rows"]) == request.num_rows
    for ours, theirs in zip(people["rows"], rows, strict=True):
        assert [cell["id"] for cell in ours["cells"]] == theirs["ids"]
        probs = [0.0 if cell["log_prob"] is None else np.exp(cell["log_prob"]) for cell in ours["cells"]]
        np.testing.assert_allclose(probs, theirs["probs"], rtol=5e-3, atol=1e-6)
        residual = ours["residual_unmapped"] + ours["residual_control"] + ours["residual_truncated"]
        assert not ours["has_target"] or sum(probs) + residual == pytest.approx(1, abs=1e-5)
    assert people["summary"]["cases"] == dict(messages[-1].trailer.cases)


def split(rows) -> list[dict]:
    edges = rows.row_offsets
    cells = [slice(edges[row], edges[row + 1]) for row in range(rows.num_rows)]
    return [{"ids": rows.cell_ids[cell].tolist(), "probs": np.exp(rows.cell_log_probs[cell])} for cell in cells]


def test_minus_infinity_is_null(http, student_id, student_profile):
    """A student token that no teacher token begins with has mass 0, whatever the truncation."""
    request = request_for(student_profile, "shells she sells", top_k=1)
    answer = http.post("/v1/score", json=json_body(request, student_id))
    assert "Infinity" not in answer.text
    assert "NaN" not in answer.text
    with_target = [row for row in answer.json()["rows"] if row["has_target"]]
    emitted = [*request.token_ids.tolist(), request.stop_id]
    for row in with_target:
        cells = {cell["id"]: cell["log_prob"] for cell in row["cells"]}
        assert cells[emitted[row["row"]]] == pytest.approx(row["emitted_log_prob"], abs=1e-3)


def test_people_register_with_a_tokenizer_file(http, student_folder, student_profile):
    body = {
        "name": "by hand",
        "tokenizer_json": (student_folder / "tokenizer.json").read_text(),
        "stop_ids": [student_profile.turn_end_id],
        "head_size": student_profile.vocabulary.size,
    }
    first = http.post("/v1/students", json=body)
    assert first.status_code == 200
    assert http.post("/v1/students", json=body).json()["already_known"]
    scored = http.post("/v1/score", json=json_body(request_for(student_profile), first.json()["student_id"]))
    assert scored.status_code == 200
    assert {statistics["routing"] for statistics in first.json()["statistics"]} == {"ROUTING_GREEDY", "ROUTING_BPE"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"tokenizer_json": "{"}, "invalid_vocabulary"),
        ({"tokenizer_json": "[]"}, "invalid_vocabulary"),
        ({"stop_ids": [10**6]}, "invalid_vocabulary"),
        ({"stop_ids": []}, "invalid_request"),
        ({"head_size": 5}, "invalid_vocabulary"),
        ({"name": "\x00"}, "invalid_request"),
        ({"name": "x" * 256}, "invalid_request"),
        ({"colour": "red"}, "invalid_request"),
    ],
)
def test_a_bad_registration_is_typed(change, code, http, student_folder, student_profile):
    body = {
        "name": "bad",
        "tokenizer_json": (student_folder / "tokenizer.json").read_text(),
        "stop_ids": [student_profile.turn_end_id],
    }
    answer = http.post("/v1/students", json={**body, **change})
    assert (answer.status_code, answer.json()["code"]) == (400, code)


@malformed
def test_a_malformed_tokenizer_file_is_no_internal_error(change, http, student_folder, student_profile):
    spec = json.loads((student_folder / "tokenizer.json").read_text())
    body = {
        "name": "bad",
        "tokenizer_json": json.dumps({**spec, **change}),
        "stop_ids": [student_profile.turn_end_id],
    }
    answer = http.post("/v1/students", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_vocabulary")


def test_a_head_above_the_limit_is_refused(http, student_folder, student_profile):
    body = {
        "name": "huge",
        "tokenizer_json": (student_folder / "tokenizer.json").read_text(),
        "stop_ids": [student_profile.turn_end_id],
        "head_size": 2**40,
    }
    answer = http.post("/v1/students", json=body)
    assert (answer.status_code, answer.json()["code"]) == (413, "limit_exceeded")


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"{", {}),
        (b"", {}),
        (b"\xff\xff\xff", PROTOBUF),
        (json.dumps({"student_id": "x", "messages": 3}).encode(), {}),
        (json.dumps({"token_ids": [2**40]}).encode(), {}),
    ],
)
@pytest.mark.parametrize("path", ["/v1/score", "/v1/students"])
def test_garbage_is_refused_as_such(path, content, headers, http):
    answer = http.post(path, content=content, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["code"] in ("invalid_request", "malformed_conversation")


def test_a_body_above_the_limit_is_refused_before_parsing(http):
    whole = http.post("/v1/score", content=b"a" * (1 << 21))
    pieces = http.post("/v1/score", content=iter([b"a" * (1 << 19)] * 4))
    for answer in (whole, pieces):
        assert (answer.status_code, answer.json()["code"]) == (413, "limit_exceeded")


def test_operators_see_health_readiness_and_metrics(http, student_id, student_profile, built_teacher, monkeypatch):
    assert http.post("/v1/score", json=json_body(request_for(student_profile), student_id)).status_code == 200
    assert http.post("/v1/score", json=json_body(request_for(student_profile), UNKNOWN_STUDENT_ID)).status_code == 404
    metrics = http.get("/metrics").text
    for line in (
        'tokbridge_requests_total{outcome="ok"}',
        'tokbridge_requests_total{outcome="refused",reason="unknown_student"}',
        'tokbridge_rows_total{case="aligned"}',
    ):
        assert sum_of_series(metrics, line) > 0
    assert sum_of_series(metrics, "tokbridge_queue_requests") == 0
    assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
    monkeypatch.setattr(built_teacher.service, "serving", False)
    assert http.get("/readyz").status_code == 503
    refused = http.post("/v1/score", json=json_body(request_for(student_profile), student_id))
    assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (503, "shutting_down", True)


def test_the_teacher_describes_itself(http, teacher_profile):
    teacher = http.get("/v1/teacher").json()
    assert teacher["vocabulary_fingerprint"] == teacher_profile.vocabulary.fingerprint
    assert teacher["limits"]["max_top_k"] == 100
    assert http.get("/docs").status_code == 200
    schema = http.get("/openapi.json").json()
    body = schema["paths"]["/v1/score"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", MEDIA_TYPE}
    assert "$defs" not in json.dumps(schema)


async def test_a_caller_that_goes_away_is_taken_off_the_queue(url, student_id, student_profile, built_teacher):
    request = json_body(request_for(student_profile, "word " * 90), student_id)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        calls = [asyncio.create_task(client.post("/v1/score", json=request)) for _ in range(12)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    for _ in range(500):
        state = built_teacher.scheduler.state()
        if state.queued_requests + state.running_requests == 0:
            break
        await asyncio.sleep(0.01)
    assert (state.queued_requests, state.running_requests) == (0, 0)
