"""What observers learn of a call from its protocol: the request's id and the caller's trace, from headers or metadata.

An id that the caller gives, as `x-request-id` or in the message, is kept when it is well-formed; else there is a new
one. It stands in every answer, every error and every log line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokbridge_teacher.faults import valid_request_id
from tokbridge_teacher.observability.calls import TRACE_HEADERS, CallRecord

REQUEST_ID_HEADER = "x-request-id"
"""HTTP header, or gRPC metadata: of a call, and trailing of its answer."""


def grpc_request_id(context: grpc.aio.ServicerContext, given: str = "") -> str:
    """Id of a call; `given`: what its message says."""
    metadata = _texts(context.invocation_metadata() or ())
    return valid_request_id(given or metadata.get(REQUEST_ID_HEADER, ""))


def grpc_call(context: grpc.aio.ServicerContext) -> CallRecord:
    """Record of a gRPC call."""
    return CallRecord("grpc", _trace_headers(_texts(context.invocation_metadata() or ())))


def http_request_id(scope: Scope) -> str:
    """Id of an HTTP call, the same at every look at it."""
    state = scope.setdefault("state", {})
    if "request_id" not in state:
        state["request_id"] = valid_request_id(_headers(scope).get(REQUEST_ID_HEADER, ""))
    return state["request_id"]


def http_call(scope: Scope) -> CallRecord:
    """Record of an HTTP call."""
    return CallRecord("http", _trace_headers(_headers(scope)))


class RequestIds:
    """ASGI middleware that shows the id of a call in the header of its answer, whoever answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer."""

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = http_request_id(scope)
            await send(message)

        await self._app(scope, receive, send_with_id if scope["type"] == "http" else send)


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def _texts(metadata: Iterable[Any]) -> dict[str, str]:
    return {key: value for key, value in metadata if isinstance(value, str)}


def _trace_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in TRACE_HEADERS if name in headers}
