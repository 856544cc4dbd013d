"""How many HTTP connections there may be, and who gives way: whoever sends nothing, so that health always answers.

A new connection over the bound takes the place of the one that has been idle for longest. Where all are busy, calls are
refused by a typed error, all but those to health, which have a reserve of connections. Nothing here reads a request.
"""

from __future__ import annotations

from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from tokbridge.error_mapping import RETRY_AFTER_DETAIL
from tokbridge.errors import OverloadedError
from tokbridge_teacher.observability.observer import RequestObserver
from tokbridge_teacher.protocols.authentication import OPEN_PATHS
from tokbridge_teacher.protocols.call_records import http_request_id
from tokbridge_teacher.protocols.http_errors import error_response

RESERVE = 64
"""Connections over the bound, for health alone."""
_RETRY_S = 1.0


class Connection(Protocol):
    """What can be asked of a connection."""

    def abort(self) -> None:
        """End it at once."""
        ...


class ConnectionRoom:
    """The connections of one server; lives in its event loop."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._idle: dict[Connection, None] = {}
        """No request of theirs is under way; the one that has been so for longest comes first."""
        self._busy: set[Connection] = set()

    @property
    def is_full(self) -> bool:
        """Whether more requests are under way than there may be connections."""
        return len(self._busy) > self._max_connections

    def opened(self, connection: Connection) -> None:
        """A connection came; it, or an idle one, is ended if there is no room for it."""
        self._idle[connection] = None
        excess = len(self._idle) + len(self._busy) - self._max_connections
        if excess > 0 and (len(self._idle) > 1 or excess > RESERVE):
            self._end(next(iter(self._idle)))

    def began(self, connection: Connection) -> None:
        """Its request is under way."""
        self._idle.pop(connection, None)
        self._busy.add(connection)

    def ended(self, connection: Connection) -> None:
        """Its answer is complete; it may send another request."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = None

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def _end(self, connection: Connection) -> None:
        del self._idle[connection]
        connection.abort()


class RoomForHealth:
    """ASGI middleware that answers nothing but health while there are more requests than there may be."""

    def __init__(self, app: ASGIApp, room: ConnectionRoom, observer: RequestObserver) -> None:
        """`observer` hears of what is refused."""
        self._app = app
        self._room = room
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 429, or let the application answer."""
        if scope["type"] == "http" and self._room.is_full and scope["path"] not in OPEN_PATHS:
            error = OverloadedError(
                "Too many HTTP requests are under way; try again.",
                name="max_connections",
                **{RETRY_AFTER_DETAIL: _RETRY_S},
            )
            self._observer.turned_away(http_request_id(scope), "http", error)
            response = error_response(error, http_request_id(scope))
            response.headers["connection"] = "close"
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)
