"""Runs a teacher service: both protocols in one event loop, one ready line, a clean stop on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from transformers.utils.logging import disable_progress_bar

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.building import BuiltService, build_service
from tokbridge_teacher.protocols.grpc_server import GrpcServer
from tokbridge_teacher.protocols.http_server import build_http_app
from tokbridge_teacher.settings import ServeSettings

READY_PREFIX = "tokbridge teacher ready "
"""The ready line on standard output: this, then a JSON object with `model`, `http`, `grpc` and `self_test`."""

_log = logging.getLogger(__name__)


def serve(settings: ServeSettings) -> None:
    """Load, check, listen, print the ready line, and serve until a signal asks to stop.

    Raises:
        TokbridgeError: the service cannot start.
    """
    disable_progress_bar()  # a log is no terminal
    built = build_service(settings)
    _log.info("self-test passed: %s", built.self_test)
    asyncio.run(_serve(settings, built))


async def _serve(settings: ServeSettings, built: BuiltService) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    max_message_bytes = settings.limits.max_message_bytes
    http_socket = _listen(settings.host, settings.port)
    grpc_server = GrpcServer(
        built.service, host=settings.host, port=settings.grpc_port, max_message_bytes=max_message_bytes
    )
    http_server = _HttpServer(
        uvicorn.Config(
            build_http_app(built.service, max_message_bytes=max_message_bytes),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, int(settings.shutdown_grace_s)),
        )
    )
    await grpc_server.start()
    http_task = asyncio.create_task(http_server.serve(sockets=[http_socket]))
    while not http_server.started and not http_task.done():
        await asyncio.sleep(0.01)
    await grpc_server.set_serving(True)
    print(READY_PREFIX + json.dumps(_ready_facts(settings, built, http_socket, grpc_server)), flush=True)
    stop_task = asyncio.create_task(stop.wait())
    await asyncio.wait((stop_task, http_task), return_when=asyncio.FIRST_COMPLETED)
    stop_task.cancel()
    await _shut_down(settings, built, grpc_server, http_server, http_task)


async def _shut_down(
    settings: ServeSettings,
    built: BuiltService,
    grpc_server: GrpcServer,
    http_server: uvicorn.Server,
    http_task: asyncio.Task[None],
) -> None:
    """Not ready first, then let running requests finish within the grace, then stop."""
    _log.info("stopping; running requests have %g s", settings.shutdown_grace_s)
    built.service.ready = False
    await grpc_server.set_serving(False)
    http_server.should_exit = True
    await asyncio.gather(
        grpc_server.stop(settings.shutdown_grace_s),
        asyncio.to_thread(built.stop, settings.shutdown_grace_s),
        http_task,
    )
    built.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InvalidConfigError(f"Cannot listen on {host}:{port}: {error.strerror}.", field="port") from error
    return listener


def _ready_facts(
    settings: ServeSettings, built: BuiltService, http_socket: socket.socket, grpc_server: GrpcServer
) -> dict[str, object]:
    return {
        "model": settings.model,
        "http": f"http://{settings.host}:{http_socket.getsockname()[1]}",
        "grpc": f"{settings.host}:{grpc_server.port}",
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
