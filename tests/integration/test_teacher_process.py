"""`tokbridge teacher serve` as users start it: a process, two ports, signals."""

import asyncio
import json
import resource
import signal
import subprocess
import sys

import grpc
import httpx
import pytest

from support import breaking_teacher
from support.requests_for import request_for
from support.scrapes import sum_of_series
from support.teacher_process import running_teacher, start_teacher
from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge.client import StudentRegistration, TeacherClient
from tokbridge.errors import InternalError
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.v1 import teacher_pb2_grpc

pytestmark = pytest.mark.integration

OPTIONS = ("--chunk-rows", "8", "--log-format", "json")


@pytest.fixture(scope="module")
def few_descriptors():
    """The limit that processes start with as a rule."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def teacher(few_descriptors, tmp_path_factory):
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("teacher"))
    with running_teacher(folder, tmp_path_factory.mktemp("log") / "teacher.log", *OPTIONS) as teacher:
        yield teacher


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return load_tokenizer(save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student")))


def test_the_ready_line_tells_what_a_launcher_needs(teacher):
    assert set(teacher.facts) == {"model", "http", "grpc", "self_test"}
    assert teacher.facts["self_test"]["disabled_paths"] == []
    assert httpx.get(f"{teacher.http}/readyz").status_code == 200


def test_it_takes_all_the_file_descriptors_it_may(teacher):
    assert len(set(resource.prlimit(teacher.process.pid, resource.RLIMIT_NOFILE))) == 1


async def test_a_client_scores_over_the_socket(teacher, student):
    async with TeacherClient(teacher.grpc, max_divergence=None) as client:
        await client.connect(StudentRegistration.from_profile(student))
        results = await asyncio.gather(*(client.score(request_for(student, f"number {n}")) for n in range(8)))
    assert all(result.rows.num_rows > 1 for result in results)
    metrics = httpx.get(f"{teacher.http}/metrics").text
    assert sum_of_series(metrics, 'tokbridge_requests_total{outcome="ok"}') == 8
    logged = [json.loads(line) for line in teacher.log.read_text().splitlines() if line.startswith("{")]
    assert [line["outcome"] for line in logged if line.get("call") == "score"] == ["ok"] * 8


async def test_sigterm_lets_running_requests_finish(tmp_path, student):
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "model")
    teacher = start_teacher(folder, tmp_path / "log", "--chunk-rows", "1", "--piece-tokens", "4")
    try:
        async with grpc.aio.insecure_channel(teacher.grpc) as channel:
            stub = teacher_pb2_grpc.TeacherStub(channel)
            registration = StudentRegistration.from_profile(student)
            await stub.RegisterStudent(registration.to_messages())
            request = request_for(student, "word " * 300)
            call = stub.Score(request.to_proto(registration.student_id))
            parts = aiter(call)
            await anext(parts)
            teacher.process.send_signal(signal.SIGTERM)
            *_, last = [part async for part in parts]
        assert last.trailer.num_rows == request.num_rows
        assert await asyncio.to_thread(teacher.process.wait, 30) == 0
    finally:
        teacher.kill()


async def test_a_device_that_is_gone_ends_the_process_so_that_it_is_started_anew(tmp_path, student):
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "model")
    marker = tmp_path / "break"
    program, env = [breaking_teacher.__file__], {"TOKBRIDGE_TEST_BREAK": str(marker)}
    teacher = start_teacher(folder, tmp_path / "log", program=program, env=env)
    try:
        async with TeacherClient(teacher.grpc, max_divergence=None) as client:
            await client.connect(StudentRegistration.from_profile(student))
            assert (await client.score(request_for(student))).rows.num_rows
            marker.touch()
            with pytest.raises(InternalError):
                await client.score(request_for(student))
        assert await asyncio.to_thread(teacher.process.wait, 60) not in (0, None)
    finally:
        teacher.kill()
    assert "start the service anew" in teacher.log.read_text().splitlines()[-1]


def test_a_model_that_is_none_is_one_clear_line(tmp_path):
    command = [sys.executable, "-m", "tokbridge_cli.main", "teacher", "serve", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert any(line.startswith("invalid_config: ") for line in ended.stderr.splitlines())
    assert "Traceback" not in ended.stderr
