"""Puts a built service behind real sockets on loopback, in this process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

from tokbridge_teacher.protocols.grpc_server import GrpcServer
from tokbridge_teacher.protocols.http_connections import http_config
from tokbridge_teacher.protocols.http_rooms import ConnectionRoom
from tokbridge_teacher.protocols.http_server import build_http_app
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.tls import ServerTls


@asynccontextmanager
async def served_over_grpc(
    service: TeacherService, max_message_bytes: int = 1 << 22, *, port: int = 0, **security: Any
) -> AsyncIterator[str]:
    """`host:port` of a gRPC server in this event loop; on a free port, or on one that was free a moment ago."""
    server = GrpcServer(service, host="127.0.0.1", port=port, max_message_bytes=max_message_bytes, **security)
    await server.start()
    server.set_serving(True)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(grace_s=2)


@contextmanager
def served_over_http(
    service: TeacherService,
    max_message_bytes: int = 1 << 22,
    *,
    max_connections: int = 1024,
    read_timeout_s: float = 300.0,
    tls: ServerTls | None = None,
    **limits: Any,
) -> Iterator[str]:
    """URL of an HTTP server in a thread of its own; `limits` are those of `build_http_app`."""
    listener = socket.create_server(("127.0.0.1", 0))
    room = ConnectionRoom(max_connections)
    app = build_http_app(service, max_message_bytes=max_message_bytes, room=room, **limits)
    server = uvicorn.Server(http_config(app, room=room, read_timeout_s=read_timeout_s, tls=tls))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http{'' if tls is None else 's'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
