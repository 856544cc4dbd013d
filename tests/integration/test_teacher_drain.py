"""SIGTERM on a real teacher process: not ready at once, running requests finish, new ones are refused."""

import asyncio
import signal
import socket
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.requests_for import request_for
from support.teacher_process import start_teacher
from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import ShuttingDownError
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc

pytestmark = pytest.mark.integration

SERVED = "tokbridge.v1.Teacher"
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
BOUND_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return load_tokenizer(save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student")))


def error_in(error: grpc.aio.AioRpcError):
    return error_of(teacher_pb2.ErrorDetail.FromString(dict(error.trailing_metadata())[ERROR_TRAILER_KEY]))


def children_of(pid: int) -> list[str]:
    return [text for task in Path(f"/proc/{pid}/task").iterdir() for text in (task / "children").read_text().split()]


async def until(condition) -> bool:
    """Whether an awaitable condition comes true within the bound."""
    for _ in range(int(BOUND_S / 0.02)):
        if await condition():
            return True
        await asyncio.sleep(0.02)
    return False


async def test_a_running_request_finishes_while_new_ones_are_refused(folder, student, tmp_path):
    teacher = start_teacher(folder, tmp_path / "log", "--chunk-rows", "8", "--piece-tokens", "64")
    registration = StudentRegistration.from_profile(student)
    request = request_for(student, "six " * 400, top_k=400)
    try:
        async with (
            grpc.aio.insecure_channel(teacher.grpc, options=SMALL_WINDOW) as channel,
            httpx.AsyncClient() as http,
        ):
            stub, health = teacher_pb2_grpc.TeacherStub(channel), health_pb2_grpc.HealthStub(channel)
            await stub.RegisterStudent(registration.to_messages())
            running = stub.Score(request.to_proto(registration.student_id))
            answers = aiter(running)
            parts = [await anext(answers)]  # the rest stays unread, so that the request is under way until we say so
            children = children_of(teacher.process.pid)
            teacher.process.send_signal(signal.SIGTERM)

            async def not_serving() -> bool:
                answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVED))
                return answer.status == health_pb2.HealthCheckResponse.NOT_SERVING

            assert await until(not_serving)
            assert (await http.get(f"{teacher.http}/readyz")).status_code == 503
            assert (await http.get(f"{teacher.http}/healthz")).status_code == 200
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Score(request.to_proto(registration.student_id)).read()
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            error = error_in(refused.value)
            assert isinstance(error, ShuttingDownError)
            assert error.retryable
            assert teacher.process.poll() is None
            parts += [part async for part in answers]
        assert parts[-1].trailer.num_rows == request.num_rows
        assert await asyncio.to_thread(teacher.process.wait, BOUND_S) == 0
        assert children, "the process that renders templates"
        assert not [child for child in children if Path(f"/proc/{child}").exists()]
        for url in (teacher.http.removeprefix("http://"), teacher.grpc):
            host, port = url.rsplit(":", 1)
            with socket.socket() as probe:
                assert probe.connect_ex((host, int(port))) != 0
    finally:
        teacher.kill()


async def test_what_outlasts_the_grace_fails_as_retryable_and_the_process_ends(folder, student, tmp_path):
    teacher = start_teacher(
        folder, tmp_path / "log", "--chunk-rows", "1", "--piece-tokens", "1", "--shutdown-grace-s", "0.1"
    )
    registration = StudentRegistration.from_profile(student)
    request = request_for(student, "word " * 400)
    try:
        async with grpc.aio.insecure_channel(teacher.grpc) as channel:
            stub = teacher_pb2_grpc.TeacherStub(channel)
            await stub.RegisterStudent(registration.to_messages())
            running = stub.Score(request.to_proto(registration.student_id))
            answers = aiter(running)
            await anext(answers)
            teacher.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                async for _ in answers:
                    pass
        assert isinstance(error_in(failed.value), ShuttingDownError)
        assert await asyncio.to_thread(teacher.process.wait, BOUND_S) == 0
    finally:
        teacher.kill()
