"""HTTP connections: how many, how long their headers may take, and what they are encrypted with.

uvicorn bounds the size of headers and closes idle connections between requests, but waits for ever for the first byte
of a connection and for the last byte of a header; this closes the gap.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokbridge_teacher.tls import ServerTls

HEADER_TIMEOUT_S = 15.0
"""From the first moment of a connection, or the first byte of a later request, to the end of the request's header."""


class PromptHeaders(H11Protocol):
    """Closes a connection whose request header is not complete in time."""

    header_timeout_s = HEADER_TIMEOUT_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Stop the clock once a request is there; bytes that do not complete one leave it running."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._start_clock()
        else:
            self._stop_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def http_config(app: ASGIApp, *, max_connections: int, tls: ServerTls | None = None, **changes: Any) -> uvicorn.Config:
    """uvicorn's configuration; past `max_connections` connections an answer is 503."""
    certificates: dict[str, Any] = {} if tls is None else dict(tls.for_uvicorn())
    return uvicorn.Config(
        app,
        http=PromptHeaders,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        limit_concurrency=max_connections,
        **certificates,
        **changes,
    )
