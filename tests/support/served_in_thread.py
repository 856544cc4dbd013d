"""A gRPC teacher in an event loop of its own thread, for callers that bring their own loop, such as commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from support.served import served_over_grpc
from tokbridge_teacher.service import TeacherService


@contextmanager
def served_in_thread(service: TeacherService, **options: Any) -> Iterator[str]:
    """`host:port`; `options` as `served_over_grpc` takes them."""
    address: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with served_over_grpc(service, **options) as target:
            address.set_result(target)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield address.result(30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
