"""A model whose passes fail: the service says so everywhere, takes no requests, and asks the model again by itself."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2

from support.gated_teacher import GatedTeacher, becomes, gated_teacher
from support.requests_for import request_for
from support.served import served_over_http
from tokbridge.errors import InternalError, ShuttingDownError
from tokbridge_teacher import supervision
from tokbridge_teacher.backends.base import BackendLostError, DeviceMemoryError
from tokbridge_teacher.protocols.grpc_server import GrpcServer
from tokbridge_teacher.supervision import supervise

LIMIT = 3
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def teacher(teacher_folder, monkeypatch):
    monkeypatch.setattr(supervision, "LOOK_S", 0.01)
    monkeypatch.setattr(supervision, "ASK_S", 0.02)
    with gated_teacher(teacher_folder, max_failed_passes=LIMIT) as teacher:
        yield teacher


@asynccontextmanager
async def supervised(teacher: GatedTeacher):
    """What the health service was told last, and the task that tells it."""
    told: list[bool] = []
    task = asyncio.create_task(supervise(teacher.built, told.append))
    assert await becomes(lambda: told == [True])
    try:
        yield told, task
    finally:
        task.cancel()


async def score(teacher: GatedTeacher, registration, profile) -> int:
    parts = [part async for part in teacher.built.service.score(registration.student_id, request_for(profile))]
    return len(parts)


async def fail_often(teacher: GatedTeacher, fault: Exception, registration, profile) -> None:
    """Passes up to the limit; the service is ready before each of them."""
    teacher.gate.fault = fault
    for _ in range(LIMIT):
        assert teacher.built.service.ready
        with pytest.raises(InternalError) as raised:
            await score(teacher, registration, profile)
        assert str(fault) not in raised.value.message


async def test_a_model_that_fails_is_not_ready_and_is_again_once_it_computes(
    teacher, student_registration, student_profile
):
    service = teacher.built.service
    await service.register(lambda: student_registration)
    async with supervised(teacher) as (told, _):
        await fail_often(teacher, RuntimeError("a secret cause"), student_registration, student_profile)
        assert not service.ready
        with pytest.raises(ShuttingDownError) as refused:
            await score(teacher, student_registration, student_profile)
        assert refused.value.retryable
        assert teacher.metric("tokbridge_ready") == 0
        assert await becomes(lambda: teacher.metric('tokbridge_failed_passes_total{reason="fault"}') >= LIMIT + 2), (
            "it is asked again"
        )
        assert not service.ready
        assert told == [True, False]
        with served_over_http(service) as url:
            assert (await asyncio.to_thread(httpx.get, f"{url}/readyz")).status_code == 503
            assert (await asyncio.to_thread(httpx.get, f"{url}/healthz")).status_code == 200
        teacher.gate.fault = None
        assert await becomes(lambda: told == [True, False, True])
        assert await score(teacher, student_registration, student_profile) > 1
    assert teacher.metric("tokbridge_ready") == 1
    assert teacher.metric("tokbridge_admitted_requests") == 0


async def test_failures_with_successes_between_them_are_those_of_single_batches(
    teacher, student_registration, student_profile
):
    await teacher.built.service.register(lambda: student_registration)
    for _ in range(2 * LIMIT):
        teacher.gate.fault = DeviceMemoryError("no memory left")
        with pytest.raises(DeviceMemoryError):
            await score(teacher, student_registration, student_profile)
        teacher.gate.fault = None
        await score(teacher, student_registration, student_profile)
        assert teacher.built.service.ready
    assert teacher.metric('tokbridge_failed_passes_total{reason="out_of_memory"}') == 2 * LIMIT


async def test_a_lost_device_ends_the_supervision(teacher, student_registration, student_profile):
    service = teacher.built.service
    await service.register(lambda: student_registration)
    async with supervised(teacher) as (_, task):
        teacher.gate.fault = BackendLostError("the device is gone")
        with pytest.raises(BackendLostError):
            await score(teacher, student_registration, student_profile)
        await asyncio.wait_for(task, 20)
    assert not service.ready
    teacher.gate.fault = None
    with pytest.raises(ShuttingDownError):
        await score(teacher, student_registration, student_profile)
    assert teacher.metric('tokbridge_failed_passes_total{reason="backend_lost"}') == 1
    assert teacher.metric('tokbridge_requests_total{outcome="failed",reason="internal"}') == 1


async def test_the_health_service_says_what_it_is_told(teacher):
    server = GrpcServer(teacher.built.service, host="127.0.0.1", port=0, max_message_bytes=1 << 20)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            for serving in (False, True, False):
                server.set_serving(serving)
                for name in ("", "tokbridge.v1.Teacher"):
                    assert ((await check(health_pb2.HealthCheckRequest(service=name))).status == SERVING) is serving
    finally:
        await server.stop(1)
