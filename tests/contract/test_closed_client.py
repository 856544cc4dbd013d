"""A client that was closed is gone from the network, even while somebody keeps an error of it."""

import asyncio
import gc
import socket
from collections import deque
from contextlib import contextmanager

import pytest

from support.fake_teacher import FakeTeacher, Fault, make_request, make_student, serving
from tokbridge.client import RetryPolicy, TeacherClient
from tokbridge.errors import OverloadedError, RequestCancelledError

SLOW = RetryPolicy(initial_backoff_s=3600.0, max_backoff_s=3600.0)
RECONNECT_S = 3.0
"""Longer than gRPC waits between two attempts to connect (`channel.py`)."""


@contextmanager
def without_garbage_collection():
    """Only reference counts free what is no longer needed; in a trainer's process the collector may come late."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_a_closed_client_does_not_go_on_looking_for_a_replica_that_was_down():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        absent = f"127.0.0.1:{listener.getsockname()[1]}"
    with without_garbage_collection():
        async with serving(FakeTeacher()) as port:
            async with TeacherClient([absent, f"127.0.0.1:{port}"], timeout_s=30) as client:
                await client.connect(make_student())
                await client.score(make_request())
            with socket.create_server(("127.0.0.1", int(absent.rpartition(":")[2]))) as listener:
                listener.settimeout(RECONNECT_S)
                try:
                    connected = await asyncio.to_thread(listener.accept)
                except TimeoutError:
                    connected = None
    assert connected is None
    assert client.statistics.finished_calls == 1


async def ends_cancelled(call):
    with pytest.raises(RequestCancelledError):
        await asyncio.wait_for(call, 10)


async def test_closing_ends_a_call_that_waits_for_its_next_attempt():
    fake = FakeTeacher(script=deque([Fault(error=OverloadedError("full"))]))
    async with serving(fake) as port:
        client = TeacherClient(f"127.0.0.1:{port}", retry=SLOW, timeout_s=36_000)
        await client.connect(make_student())
        call = asyncio.create_task(client.score(make_request()))
        while not client.statistics.retries:
            await asyncio.sleep(0.01)
        await client.close()
        await ends_cancelled(call)


async def test_closing_ends_a_connect_that_waits_for_its_next_attempt():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        absent = f"127.0.0.1:{listener.getsockname()[1]}"
    client = TeacherClient(absent, retry=SLOW, connect_timeout_s=36_000)
    call = asyncio.create_task(client.connect(make_student()))
    while not client.statistics.retries:
        await asyncio.sleep(0.01)
    await client.close()
    await ends_cancelled(call)


async def test_closing_ends_a_connect_that_looks_names_up():
    looked_up = asyncio.Event()

    async def resolve(host, port):
        await looked_up.wait()
        return ["127.0.0.1"]

    client = TeacherClient("somewhere:1", resolve=resolve)
    call = asyncio.create_task(client.connect(make_student()))
    await asyncio.sleep(0.01)
    await client.close()
    looked_up.set()
    await ends_cancelled(call)
    await ends_cancelled(client.connect(make_student()))
