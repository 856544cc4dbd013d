"""Runs a teacher service: both protocols in one event loop, one ready line, a clean stop on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from transformers.utils.logging import disable_progress_bar

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.backends.base import BackendLostError
from tokbridge_teacher.building import BuiltService, build_service
from tokbridge_teacher.protocols.authentication import Authenticator
from tokbridge_teacher.protocols.grpc_server import GrpcServer
from tokbridge_teacher.protocols.http_connections import http_config
from tokbridge_teacher.protocols.http_rooms import ConnectionRoom
from tokbridge_teacher.protocols.http_server import build_http_app
from tokbridge_teacher.security import Security, open_security
from tokbridge_teacher.settings import ServeSettings
from tokbridge_teacher.supervision import supervise
from tokbridge_teacher.upload_budget import UploadBudget

READY_PREFIX = "tokbridge teacher ready "
"""The ready line on standard output: this, then a JSON object with `model`, `http`, `grpc` and `self_test`."""

_POLL_S = 0.01
_LAST_WORDS_S = 2
"""For the answers to requests that were failed when the grace was over."""

_log = logging.getLogger(__name__)


def serve(settings: ServeSettings) -> None:
    """Load, check, listen, print the ready line, and serve until a signal asks to stop.

    Raises:
        BackendLostError: it had to stop by itself.
        TokbridgeError: the service cannot start.
    """
    disable_progress_bar()  # a log is no terminal
    _use_all_file_descriptors()
    security = open_security(settings)
    for field, port in (("port", settings.port), ("grpc_port", settings.grpc_port)):
        _listen(settings.host, port, field).close()  # a large model takes minutes to load; then it would be too late
    built = build_service(settings)
    built.renderers.warm_up()
    _log.info("self-test passed: %s", built.self_test)
    asyncio.run(_serve(settings, security, built))


async def _serve(settings: ServeSettings, security: Security, built: BuiltService) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    http_socket = _listen(settings.host, settings.port, "port")
    grpc_server, http_server = _servers(settings, security, built)
    await grpc_server.start()
    http_task = asyncio.create_task(http_server.serve(sockets=[http_socket]))
    while not http_server.started and not http_task.done():
        await asyncio.sleep(_POLL_S)
    grpc_server.set_serving(True)
    lost_task = asyncio.create_task(supervise(built, grpc_server.set_serving))
    print(READY_PREFIX + json.dumps(_ready_facts(settings, built, http_socket, grpc_server)), flush=True)
    stop_task = asyncio.create_task(stop.wait())
    await asyncio.wait((stop_task, http_task, lost_task), return_when=asyncio.FIRST_COMPLETED)
    lost = lost_task.done()
    for task in (stop_task, lost_task):
        task.cancel()
    await _shut_down(settings, built, grpc_server, http_server, http_task)
    if lost:
        lost_task.result()  # a fault of its own
        raise BackendLostError("The teacher's device computes nothing any more; start the service anew.")


def _servers(settings: ServeSettings, security: Security, built: BuiltService) -> tuple[GrpcServer, uvicorn.Server]:
    """Both protocols, with the same keys, certificates and room for uploads."""
    shared: dict[str, Any] = {
        "max_message_bytes": settings.limits.max_message_bytes,
        "uploads": UploadBudget(settings.max_upload_bytes),
        "authenticator": security.keys and Authenticator(security.keys, built.service.metrics),
    }
    grpc_server = GrpcServer(
        built.service,
        host=settings.host,
        port=settings.grpc_port,
        max_calls=settings.max_calls,
        read_timeout_s=settings.read_timeout_s,
        tls=security.tls,
        **shared,
    )
    room = ConnectionRoom(settings.max_connections)
    http_server = _HttpServer(
        http_config(
            build_http_app(built.service, room=room, **shared),
            room=room,
            read_timeout_s=settings.read_timeout_s,
            tls=security.tls,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
    )
    return grpc_server, http_server


async def _shut_down(
    settings: ServeSettings,
    built: BuiltService,
    grpc_server: GrpcServer,
    http_server: uvicorn.Server,
    http_task: asyncio.Task[None],
) -> None:
    """Not ready at once, while both protocols go on listening, to say so and to refuse new requests by a typed error;
    once running requests have finished or the grace is over, fail what is left and stop.
    """
    _log.info("stopping; running requests have %g s", settings.shutdown_grace_s)
    built.service.serving = False
    grpc_server.set_serving(False)
    await _idle(built, settings.shutdown_grace_s)
    await asyncio.to_thread(built.stop, 0)
    http_server.should_exit = True
    await asyncio.gather(grpc_server.stop(_LAST_WORDS_S), http_task)
    built.close()


async def _idle(built: BuiltService, grace_s: float) -> None:
    """Wait until nothing is under way, at most `grace_s` seconds."""
    try:
        async with asyncio.timeout(grace_s):
            while not built.service.idle:
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        _log.warning("requests are still under way after %g s; they are failed as retryable", grace_s)


def _use_all_file_descriptors() -> None:
    """Lift the soft limit to the hard one: often it is 1,024, fewer than the connections that there may be, and a
    service without a descriptor answers nobody. Connections and calls have bounds of their own.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(host: str, port: int, field: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidConfigError(f"Cannot listen on {host}:{port}: {error.strerror}.", field=field) from error
    return listener


def _ready_facts(
    settings: ServeSettings, built: BuiltService, http_socket: socket.socket, grpc_server: GrpcServer
) -> dict[str, object]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return {
        "model": settings.model,
        "http": f"{'https' if settings.tls_certificate else 'http'}://{host}:{http_socket.getsockname()[1]}",
        "grpc": f"{host}:{grpc_server.port}",
        "self_test": {
            "head_error": built.self_test.head_error,
            "path_errors": built.self_test.path_errors,
            "disabled_paths": list(built.self_test.disabled_paths),
            "repeat_error": built.repeat_error,
        },
    }


class _HttpServer(uvicorn.Server):
    """Leaves signals alone: one stop serves both protocols."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
