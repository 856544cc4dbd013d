"""HTTP bodies before anything parses them: bytes of one and of all together, encoding, and the time they take."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokbridge.errors import DeadlineExceededError, InvalidRequestError, LimitExceededError, TokbridgeError
from tokbridge_teacher.observability.observer import RequestObserver
from tokbridge_teacher.protocols.call_records import http_request_id
from tokbridge_teacher.protocols.http_errors import error_response
from tokbridge_teacher.upload_budget import Upload, UploadBudget

BODY_TIMEOUT_S = 60.0
"""For a whole body: a caller that sends slower than this does not keep its place."""
LEFTOVER_BYTES, LEFTOVER_S = 4 << 20, 1.0
"""Of a body that is refused, what is still read, at most, and for how long."""


class BodyLimit:
    """ASGI middleware that reads a body up to a limit and hands it on whole.

    A compressed body is refused: what it expands to would have to be bounded, and no client of ours sends one. The
    application may take more room, for an answer that it holds, by `hold` in the scope's state.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        uploads: UploadBudget,
        observer: RequestObserver | None = None,
        timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        """`observer` hears of what is refused."""
        self._app = app
        self._observer = observer
        self._max_bytes = max_bytes
        self._uploads = uploads
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a body that is not taken, or let the application answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._uploads.upload() as upload:
            scope.setdefault("state", {})["hold"] = partial(self._uploads.take, upload)
            try:
                body = await self._read(scope, receive, upload)
            except TokbridgeError as error:
                if self._observer is not None:
                    self._observer.turned_away(http_request_id(scope), "http", error)
                await _drop_leftover(receive)
                await _refusal(scope, error)(scope, receive, send)
                return
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive, upload: Upload) -> bytes | None:
        """The whole body; None if the caller left before its end."""
        headers = dict(scope["headers"])
        if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"identity", b""):
            raise InvalidRequestError("The body is compressed; send it as it is.", field="content-encoding")
        announced = headers.get(b"content-length", b"0")
        if announced.isdigit() and len(announced) < 20:
            self._check(int(announced))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._receive(receive, upload)
        except TimeoutError:
            raise DeadlineExceededError(f"The body was not complete after {self._timeout_s:g} seconds.") from None

    async def _receive(self, receive: Receive, upload: Upload) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            self._check(len(body) + len(piece))
            self._uploads.take(upload, len(piece))
            body += piece
            if not message.get("more_body", False):
                return bytes(body)

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise LimitExceededError(
                f"The body is larger than {self._max_bytes} bytes.", name="max_message_bytes", limit=self._max_bytes
            )


async def _drop_leftover(receive: Receive) -> None:
    """Read what of a body is on its way. To close over unread bytes is a reset, which may overtake the answer."""
    num_bytes, more = 0, True
    with suppress(TimeoutError):
        async with asyncio.timeout(LEFTOVER_S):
            while more and num_bytes < LEFTOVER_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                more = message.get("more_body", False)


def _refusal(scope: Scope, error: TokbridgeError) -> JSONResponse:
    response = error_response(error, http_request_id(scope))
    if isinstance(error, InvalidRequestError):
        response.status_code = 415
        response.headers["accept-encoding"] = "identity"
    if isinstance(error, DeadlineExceededError):
        response.status_code = 408
    if not isinstance(error, InvalidRequestError):
        response.headers["connection"] = "close"  # the rest of the body is not read
    return response


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
