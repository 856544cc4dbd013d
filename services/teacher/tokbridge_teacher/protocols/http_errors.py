"""Typed errors as HTTP answers, and the limit on bodies."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokbridge.error_mapping import RETRY_AFTER_DETAIL, detail_of
from tokbridge.errors import (
    ErrorCode,
    InvalidRequestError,
    LimitExceededError,
    MalformedConversationError,
    TokbridgeError,
)
from tokbridge_teacher.faults import valid_request_id

REQUEST_ID_HEADER = "x-request-id"

STATUS_BY_CODE: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN_STUDENT: 404,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: 413,
    ErrorCode.LIMIT_EXCEEDED: 413,
    ErrorCode.UNSUPPORTED_MODE: 422,
    ErrorCode.UNSUPPORTED_TEMPLATE: 501,
    ErrorCode.CANCELLED: 499,
    ErrorCode.OVERLOADED: 429,
    ErrorCode.SHUTTING_DOWN: 503,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.NON_FINITE_LOGITS: 500,
    ErrorCode.INTERNAL: 500,
    ErrorCode.SELF_TEST_FAILED: 500,
}
"""Status of every code that is not the caller's argument; all others are 400."""

Body = TypeVar("Body", bound=BaseModel)


def request_id_of(request: Request) -> str:
    """The caller's `x-request-id`, or a new one; the same at every call for one request."""
    if not hasattr(request.state, "request_id"):
        request.state.request_id = valid_request_id(request.headers.get(REQUEST_ID_HEADER, ""))
    return request.state.request_id


def error_response(error: TokbridgeError, request_id: str) -> JSONResponse:
    """A typed error as JSON, with `Retry-After` where the error says how long."""
    body = MessageToDict(
        detail_of(error, request_id), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    headers = {}
    if RETRY_AFTER_DETAIL in error.details:
        headers["retry-after"] = str(max(1, round(float(error.details[RETRY_AFTER_DETAIL]))))
    return JSONResponse(body, status_code=STATUS_BY_CODE.get(error.code, 400), headers=headers)


async def answer_typed_error(request: Request, error: Exception) -> JSONResponse:
    """FastAPI's handler of `TokbridgeError`."""
    assert isinstance(error, TokbridgeError)
    return error_response(error, request_id_of(request))


def parse_json(model: type[Body], text: bytes) -> Body:
    """A JSON body as its model.

    Raises:
        MalformedConversationError: a message is at fault.
        InvalidRequestError: another field is; it is named.
    """
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = first["loc"]
        field = ".".join(map(str, path)) or "body"
        reason = f"{field}: {first['msg']}"
        if path and path[0] == "messages":
            raise MalformedConversationError(reason, field=field) from error
        raise InvalidRequestError(reason, field=field) from error


class BodyLimit:
    """ASGI middleware that refuses a body above a limit before anything parses it."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body up to the limit, then hand it on whole."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await self._read(scope, receive)
        if body is None:
            error = LimitExceededError(
                f"The body is larger than {self._max_bytes} bytes.", name="max_message_bytes", limit=self._max_bytes
            )
            await error_response(error, valid_request_id(""))(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None as soon as it is known to be too large."""
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            return None
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay
