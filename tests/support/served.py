"""Puts a built service behind real sockets on loopback, in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from tokbridge_teacher.protocols.grpc_server import GrpcServer
from tokbridge_teacher.protocols.http_server import build_http_app
from tokbridge_teacher.service import TeacherService


@asynccontextmanager
async def served_over_grpc(service: TeacherService, max_message_bytes: int = 1 << 22) -> AsyncIterator[str]:
    """`host:port` of a gRPC server in this event loop."""
    server = GrpcServer(service, host="127.0.0.1", port=0, max_message_bytes=max_message_bytes)
    await server.start()
    await server.set_serving(True)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(grace_s=2)


@contextmanager
def served_over_http(service: TeacherService, max_message_bytes: int = 1 << 22) -> Iterator[str]:
    """URL of an HTTP server in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = build_http_app(service, max_message_bytes=max_message_bytes)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
