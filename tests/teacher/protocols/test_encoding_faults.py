"""A fault while an answer is encoded is the service's own: typed for the caller, and counted as one."""

import grpc
import httpx
import pytest

from support.gated_teacher import becomes, gated_teacher
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import InternalError
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.protocols import http_json, messages
from tokbridge_teacher.protocols.http_protobuf import MEDIA_TYPE

SECRET = "what the rows of a conversation hold"


@pytest.fixture(scope="module")
def teacher(teacher_folder):
    with gated_teacher(teacher_folder, chunk_rows=8) as teacher:
        yield teacher


@pytest.fixture
async def message(teacher, student_registration, student_profile) -> teacher_pb2.ScoreRequest:
    await teacher.built.service.register(lambda: student_registration)
    return request_for(student_profile).to_proto(student_registration.student_id)


@pytest.fixture(autouse=True)
def _fault(monkeypatch):
    def fail(*_):
        raise ValueError(SECRET)

    monkeypatch.setattr(messages, "encode_rows", fail)
    monkeypatch.setattr(http_json, "row_to_json", fail)


@pytest.fixture(autouse=True)
async def _counted(teacher):
    failed, gone = (
        'tokbridge_requests_total{outcome="failed",reason="internal"}',
        'tokbridge_cancellations_total{reason="client_gone"}',
    )
    before = {series: teacher.metric(series) for series in (failed, gone)}
    yield
    assert teacher.metric(failed) == before[failed] + 1
    assert teacher.metric(gone) == before[gone]
    assert await becomes(lambda: teacher.held() == 0)
    assert await becomes(lambda: teacher.built.scheduler.state().running_requests == 0)


async def test_over_grpc(teacher, message):
    async with served_over_grpc(teacher.built.service) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            async for _ in teacher_pb2_grpc.TeacherStub(channel).Score(message):
                pass
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    error = error_of(teacher_pb2.ErrorDetail.FromString(dict(failed.value.trailing_metadata())[ERROR_TRAILER_KEY]))
    assert isinstance(error, InternalError)
    assert error.details["request_id"] == "test-request"
    assert SECRET not in error.message


@pytest.mark.parametrize("accept", ["application/json", MEDIA_TYPE])
async def test_over_http(accept, teacher, message):
    headers = {"content-type": MEDIA_TYPE, "accept": accept}
    with served_over_http(teacher.built.service) as url:
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{url}/v1/score", content=message.SerializeToString(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert SECRET not in answer.text
