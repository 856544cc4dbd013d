"""While something large is read, the service answers others: whatever takes time happens outside its event loop."""

import asyncio
import threading

import grpc
import httpx
import pytest

from support.gated_teacher import WAIT_S, becomes
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.registration_reader import RegistrationReader
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher import request_limits
from tokbridge_teacher.protocols import http_protobuf, http_server
from tokbridge_teacher.protocols.http_protobuf import MEDIA_TYPE

LARGE = 1 << 17


class Held:
    """A function that goes on when it is told to; meanwhile it holds the thread that called it."""

    def __init__(self, function) -> None:
        self._function = function
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments, **named):
        self.begun.set()
        assert self.go_on.wait(WAIT_S), "held for too long: was it called in the event loop?"
        return self._function(*arguments, **named)


@pytest.fixture
def hold(monkeypatch):
    """Replaces a function of a module or a class by one that is held."""
    made: list[Held] = []

    def replace(owner, name: str) -> Held:
        held = Held(getattr(owner, name))
        monkeypatch.setattr(owner, name, lambda *arguments, **named: held(*arguments, **named))
        made.append(held)
        return held

    yield replace
    for held in made:
        held.go_on.set()


async def assert_answers_while_held(held: Held, work: asyncio.Future, ask) -> None:
    """`ask` is answered while `work` stands still in the held function."""
    assert await becomes(held.begun.is_set)
    await asyncio.wait_for(ask(), WAIT_S / 3)
    assert not work.done()
    held.go_on.set()
    await asyncio.wait_for(asyncio.wait([work]), WAIT_S)


async def test_a_large_score_request_over_grpc(hold, built_teacher, student_profile):
    held = hold(request_limits, "read_score_request")
    message = request_for(student_profile).to_proto("unknown")
    message.student_generation_prompt_tail = "x" * LARGE
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)

        async def score() -> None:
            async for _ in stub.Score(message):
                pass

        work = asyncio.ensure_future(score())
        await assert_answers_while_held(held, work, lambda: _get_teacher(stub))
        assert isinstance(work.exception(), grpc.aio.AioRpcError)


async def test_a_registration_over_grpc(hold, built_teacher, student_registration):
    held = hold(RegistrationReader, "finish")
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        work = asyncio.ensure_future(stub.RegisterStudent(iter(student_registration.to_messages())).__await__())
        await assert_answers_while_held(held, work, lambda: _get_teacher(stub))
        assert work.result().student_id == student_registration.student_id


async def _get_teacher(stub) -> None:
    await stub.GetTeacher(teacher_pb2.GetTeacherRequest())


@pytest.mark.parametrize(
    ("path", "content_type", "owner", "name"),
    [
        ("/v1/students", "application/json", http_server, "parse_json"),
        ("/v1/students", MEDIA_TYPE, http_protobuf, "parse_upload"),
        ("/v1/score", "application/json", http_server, "parse_score_body"),
        ("/v1/score", MEDIA_TYPE, request_limits, "read_score_request"),
    ],
)
async def test_a_large_body_over_http(path, content_type, owner, name, hold, built_teacher):
    held = hold(owner, name)
    body = teacher_pb2.ScoreRequest(response=b"x" * LARGE).SerializeToString()
    with served_over_http(built_teacher.service) as url:
        async with httpx.AsyncClient(timeout=WAIT_S) as http:
            headers = {"content-type": content_type}
            work = asyncio.ensure_future(http.post(f"{url}{path}", content=body, headers=headers))
            await assert_answers_while_held(held, work, lambda: http.get(f"{url}/healthz"))
            assert work.result().status_code in (400, 413)
