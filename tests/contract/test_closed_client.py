"""A client that was closed is gone from the network, even while somebody keeps an error of it."""

import asyncio
import gc
import socket
from contextlib import contextmanager

import pytest

from support.fake_teacher import FakeTeacher, make_request, make_student, serving
from tokbridge.client import TeacherClient
from tokbridge.errors import RequestCancelledError

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


async def test_a_client_that_is_closed_while_it_looks_for_its_teacher_says_so():
    looking, found = asyncio.Event(), asyncio.Event()

    async def resolve(*_):
        looking.set()
        await found.wait()
        return ["127.0.0.1"]

    client = TeacherClient("teacher:1", resolve=resolve)
    connecting = asyncio.create_task(client.connect(make_student()))
    await looking.wait()
    await client.close()
    found.set()
    with pytest.raises(RequestCancelledError):
        await asyncio.wait_for(connecting, 10)


async def test_a_client_that_was_closed_before_it_connected_stays_closed():
    client = TeacherClient("127.0.0.1:1", connect_timeout_s=1)
    await client.close()
    with pytest.raises(RequestCancelledError):
        await client.connect(make_student())
