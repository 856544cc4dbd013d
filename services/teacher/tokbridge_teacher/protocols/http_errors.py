"""Typed errors as HTTP answers."""

from __future__ import annotations

import math
from typing import TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel, ValidationError

from tokbridge.error_mapping import RETRY_AFTER_DETAIL, detail_of
from tokbridge.errors import (
    ErrorCode,
    InvalidRequestError,
    MalformedConversationError,
    TokbridgeError,
)
from tokbridge.json_text import check_num_values
from tokbridge_teacher.protocols.call_records import http_request_id

STATUS_BY_CODE: dict[ErrorCode, int] = {
    ErrorCode.UNKNOWN_STUDENT: 404,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: 413,
    ErrorCode.LIMIT_EXCEEDED: 413,
    ErrorCode.UNSUPPORTED_MODE: 422,
    ErrorCode.UNSUPPORTED_TEMPLATE: 501,
    ErrorCode.CANCELLED: 499,
    ErrorCode.UNAUTHENTICATED: 401,
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
    return http_request_id(request.scope)


def error_response(error: TokbridgeError, request_id: str) -> JSONResponse:
    """A typed error as JSON, with `Retry-After` where the error says how long."""
    body = MessageToDict(
        detail_of(error, request_id), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    headers = {}
    if RETRY_AFTER_DETAIL in error.details:
        headers["retry-after"] = str(max(1, math.ceil(float(error.details[RETRY_AFTER_DETAIL]))))
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
        check_num_values(text)
    except ValueError as error:
        raise InvalidRequestError(f"The body holds {error}.", field="body") from error
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
