"""`grpc.health.v1`, which anybody may ask without a key: so only so many may watch, and the calls of others keep their
places.
"""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

MAX_WATCHERS = 64


class BoundedHealth(HealthServicer):
    """The standard servicer with a bound on calls that never end."""

    def __init__(self) -> None:
        super().__init__()
        self._watchers = 0

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Stream the status as it changes; past `MAX_WATCHERS` RESOURCE_EXHAUSTED."""
        if self._watchers >= MAX_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many watch already; use Check.")
        self._watchers += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watchers -= 1
