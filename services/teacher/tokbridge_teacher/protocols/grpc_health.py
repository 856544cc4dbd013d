"""`grpc.health.v1`, which anybody may ask without a key: so only so many may watch, and the calls of others keep their
places.

Not grpcio's own servicer: that one writes to a watcher under the lock that a change of status needs, so one watcher who
does not read would keep a service that stops SERVING for everybody.
"""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

MAX_WATCHERS = 64

Status = health_pb2.HealthCheckResponse.ServingStatus


class Health(health_pb2_grpc.HealthServicer):
    """Status by service name; lives in one event loop."""

    def __init__(self) -> None:
        self._statuses: dict[str, Status] = {}
        self._changed = asyncio.Event()
        """Set once, at the next change; then another one takes its place."""
        self._watchers = 0

    def set(self, service: str, status: Status) -> None:
        """Change what is answered from now on; waits for nobody."""
        self._statuses[service] = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """The status at this moment; NOT_FOUND for a service that is not here."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no service of this name.")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Stream the status as it changes, the latest one to a watcher who is slow; past `MAX_WATCHERS`
        RESOURCE_EXHAUSTED.
        """
        if self._watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many watch already; use Check.")
        self._watchers += 1
        try:
            await self._stream(request.service, context)
        finally:
            self._watchers -= 1

    async def _stream(self, service: str, context: grpc.aio.ServicerContext) -> None:
        sent: Status | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await changed.wait()
