"""Who calls, on both protocols: `Bearer KEY` in `authorization`. Once a service has keys, all is denied without one.

Exempt are health and readiness alone: `grpc.health.v1`, `/healthz`, `/readyz`. Metrics, reflection, documentation and
paths that do not exist all want a key. The check comes before a body or a message is read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import grpc
from starlette.types import ASGIApp, Receive, Scope, Send

from tokbridge.errors import UnauthenticatedError
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.key_ring import KeyRing
from tokbridge_teacher.observability.metrics import ServiceMetrics
from tokbridge_teacher.protocols.call_records import http_request_id
from tokbridge_teacher.protocols.http_errors import error_response

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
OPEN_SERVICE = "/grpc.health.v1.Health/"

CALLER: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)
"""Whose call is being handled."""

Refusal = Callable[[grpc.aio.ServicerContext, UnauthenticatedError], Awaitable[None]]


class Authenticator:
    """Finds callers by what they show."""

    def __init__(self, keys: KeyRing, metrics: ServiceMetrics) -> None:
        self._keys = keys
        self._metrics = metrics

    def caller(self, authorization: str | None, protocol: str) -> Caller:
        """Whose key stands in an `authorization` header; a failure is counted.

        Raises:
            UnauthenticatedError: there is no header, or no key in it that is valid.
        """
        scheme, _, key = (authorization or "").partition(" ")
        found = self._keys.caller(key.strip()) if scheme.lower() == "bearer" else None
        if found is None:
            self._metrics.count_refused_caller(protocol)
            reason = "is not valid" if authorization else "is missing"
            raise UnauthenticatedError(f"The API key {reason}; show it as `authorization: Bearer KEY`.")
        return found


class HttpAuthentication:
    """ASGI middleware that lets nobody past without a key."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401, or let the application answer the caller."""
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        header = dict(scope.get("headers", ())).get(b"authorization")
        try:
            caller = self._authenticator.caller(None if header is None else header.decode("latin-1"), "http")
        except UnauthenticatedError as error:
            response = error_response(error, http_request_id(scope))
            response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        token = CALLER.set(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            CALLER.reset(token)


class GrpcAuthentication(grpc.aio.ServerInterceptor):
    """Interceptor that lets nobody past without a key, not even to a method that does not exist."""

    def __init__(self, authenticator: Authenticator, refuse: Refusal) -> None:
        """`refuse` ends a call with the status of a typed error."""
        self._authenticator = authenticator
        self._refuse = refuse

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the call, or one that refuses it before a message is read."""
        if handler_call_details.method.startswith(OPEN_SERVICE):
            return await continuation(handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata or ())
        header = metadata.get("authorization")
        try:
            CALLER.set(self._authenticator.caller(header if isinstance(header, str) else None, "grpc"))
        except UnauthenticatedError as error:
            return self._refusal(error)
        return await continuation(handler_call_details)

    def _refusal(self, error: UnauthenticatedError) -> grpc.RpcMethodHandler:
        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            await self._refuse(context, error)

        # Whatever the method is: as a stream it is called before a message is read.
        return grpc.stream_stream_rpc_method_handler(refuse)
