"""A watcher of the health service who does not read keeps nobody from learning that a service stops."""

import asyncio
from typing import cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.served import served_over_grpc
from tokbridge_teacher.protocols import grpc_health
from tokbridge_teacher.protocols.grpc_health import Health

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WAIT_S = 10


class Watcher:
    """A call whose client takes messages only while its window is open."""

    def __init__(self, health: Health, service: str = "teacher", window_open: bool = True) -> None:
        self.window = asyncio.Event()
        self.seen: list[int] = []
        self.arrived = asyncio.Event()
        self.begun = asyncio.Event()
        if window_open:
            self.window.set()
        request = health_pb2.HealthCheckRequest(service=service)
        self.task = asyncio.create_task(health.Watch(request, cast(grpc.aio.ServicerContext, self)))

    async def write(self, message: health_pb2.HealthCheckResponse) -> None:
        self.begun.set()
        await self.window.wait()
        self.seen.append(message.status)
        self.arrived.set()

    async def next(self) -> int:
        await asyncio.wait_for(self.arrived.wait(), WAIT_S)
        self.arrived.clear()
        return self.seen[-1]


@pytest.fixture
def health():
    health = Health()
    health.set("teacher", SERVING)
    return health


async def answer(health: Health) -> int:
    request = health_pb2.HealthCheckRequest(service="teacher")
    return (await health.Check(request, cast(grpc.aio.ServicerContext, None))).status


async def test_a_watcher_that_does_not_read_holds_up_no_change(health):
    stuck, awake = Watcher(health, window_open=False), Watcher(health)
    await asyncio.wait_for(stuck.begun.wait(), WAIT_S)
    assert await awake.next() == SERVING
    health.set("teacher", NOT_SERVING)
    assert await answer(health) == NOT_SERVING
    assert await awake.next() == NOT_SERVING
    stuck.window.set()
    while await stuck.next() != NOT_SERVING:
        pass
    for watcher in (stuck, awake):
        watcher.task.cancel()


async def test_a_slow_watcher_learns_the_latest_status(health):
    slow = Watcher(health, window_open=False)
    await asyncio.wait_for(slow.begun.wait(), WAIT_S)
    for status in (NOT_SERVING, SERVING, NOT_SERVING):
        health.set("teacher", status)
    slow.window.set()
    while await slow.next() != NOT_SERVING:
        pass
    assert slow.seen == [SERVING, NOT_SERVING]
    slow.task.cancel()


async def test_a_service_that_is_not_here_is_unknown_until_it_is(health):
    watcher = Watcher(health, service="later")
    assert await watcher.next() == UNKNOWN
    health.set("later", SERVING)
    assert await watcher.next() == SERVING
    watcher.task.cancel()


async def test_so_many_may_watch_and_who_leaves_makes_room(health, monkeypatch, built_teacher):
    monkeypatch.setattr(grpc_health, "MAX_WATCHERS", 1)
    request = health_pb2.HealthCheckRequest()
    async with (
        served_over_grpc(built_teacher.service) as target,
        grpc.aio.insecure_channel(target) as channel,
        asyncio.timeout(WAIT_S),
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watching = stub.Watch(request)
        assert (await anext(aiter(watching))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(stub.Watch(request)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        watching.cancel()
        while (status := await first_status(stub, request)) is None:
            await asyncio.sleep(0.01)
        assert status == SERVING


async def first_status(stub, request) -> int | None:
    """What a new watcher is told; None: it is turned away."""
    try:
        return (await anext(aiter(stub.Watch(request)))).status
    except grpc.aio.AioRpcError:
        return None


async def test_to_check_a_service_that_is_not_here_is_an_error(built_teacher):
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="another"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
