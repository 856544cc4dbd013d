"""HTTP connections: how many, how long callers may take to send a header or to read, what they are encrypted with.

uvicorn bounds the size of headers and closes idle connections between requests, but waits for ever for the first byte
of a connection, for the last byte of a header, and for a caller that does not read, and its bound on connections counts
idle ones and refuses health; this closes the gaps.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokbridge_teacher.protocols.http_rooms import ConnectionRoom
from tokbridge_teacher.tls import ServerTls
from tokbridge_teacher.tls_rotation import ssl_context

HEADER_TIMEOUT_S = 15.0
"""From the first moment of a connection, or the first byte of a later request, to the end of the request's header."""
KEEP_ALIVE_S = 100
"""For which an idle connection stays open: longer than callers' pools and load balancers keep one, as a rule 60 or 90
seconds, so that they close it. One that is closed while its caller sends is a reset for the caller; uvicorn's 5 seconds
are those of httpx.
"""


class PromptCallers(H11Protocol):
    """Closes a connection whose request header is not complete in time, or whose caller takes no more of an answer."""

    header_timeout_s = HEADER_TIMEOUT_S
    _deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, read_timeout_s: float, room: ConnectionRoom, **kwargs: Any) -> None:
        """`read_timeout_s`: how long what was written may wait; `room` is told of the connection."""
        super().__init__(*args, **kwargs)
        self._read_timeout_s = read_timeout_s
        self._room = room

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start the clock."""
        super().connection_made(transport)
        self._start_clock()
        self._room.opened(self)

    def data_received(self, data: bytes) -> None:
        """Stop the clock once a request is there; bytes that do not complete one leave it running."""
        super().data_received(data)
        if self._is_idle():
            self._start_clock()
        else:
            self._stop_clock()
            self._room.began(self)

    def on_response_complete(self) -> None:
        """Give the place back to whoever comes, unless the next request is there already."""
        super().on_response_complete()
        if self._is_idle():
            self._room.ended(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._stop_clock()
        self._stop_read_clock()
        self._room.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Break the connection off."""
        self.transport.abort()

    def pause_writing(self) -> None:
        """Start the reader's clock: the connection is full. To close it would wait for the reader as well."""
        super().pause_writing()
        self._stop_read_clock()
        self._read_deadline = self.loop.call_later(self._read_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the reader's clock."""
        self._stop_read_clock()
        super().resume_writing()

    def _is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def _start_clock(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_read_clock(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None


def http_config(
    app: ASGIApp, *, room: ConnectionRoom, read_timeout_s: float, tls: ServerTls | None = None, **changes: Any
) -> uvicorn.Config:
    """uvicorn's configuration; an answer that its caller does not read for `read_timeout_s` is broken off.

    `room` bounds the connections, and is the one that the application asks.
    """
    protocol: Any = partial(PromptCallers, read_timeout_s=read_timeout_s, room=room)  # uvicorn only calls it
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        **changes,
    )
    if tls is not None:
        config.load()
        config.ssl = ssl_context(tls)  # in place of one that keeps what the files hold now
    return config
