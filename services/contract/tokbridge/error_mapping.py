"""Errors to and from their wire form, the `ErrorDetail` message.

A gRPC service puts the serialized message into the trailing metadata under `ERROR_TRAILER_KEY`, an HTTP service into
the body. Which status a protocol gives to a code is that protocol's own table; the client reads the detail.
"""

from __future__ import annotations

import re

from tokbridge.errors import TokbridgeError, error_from_code
from tokbridge.v1 import teacher_pb2

ERROR_TRAILER_KEY = "tokbridge-error-bin"
"""Key of the trailing metadata that holds a serialized `ErrorDetail`."""

RETRY_AFTER_DETAIL = "retry_after_s"
"""Detail of a retryable error: seconds to wait before the same call may be tried again."""

MAX_MESSAGE_LENGTH = 500
MAX_DETAIL_LENGTH = 200
"""Characters; gRPC clients refuse trailers of 8 KiB, and a message travels twice, once with its bytes escaped."""

_INTEGER = re.compile(r"-?\d{1,18}")
_FLOAT = re.compile(r"-?\d+(\.\d+(e[+-]?\d+)?|e[+-]?\d+)")
_NOT_A_DETAIL = {"self", "message"}


def detail_of(error: TokbridgeError, request_id: str = "") -> teacher_pb2.ErrorDetail:
    """Pack an error for the wire."""
    return teacher_pb2.ErrorDetail(
        code=error.code.value,
        message=_sendable(error.message, MAX_MESSAGE_LENGTH),
        details={name: _sendable(str(value), MAX_DETAIL_LENGTH) for name, value in error.details.items()},
        retryable=error.retryable,
        request_id=request_id,
    )


def _sendable(text: str, length: int) -> str:
    """Text that came from a caller as its headers and UTF-8 can carry it: cut, and lone surrogates replaced."""
    cut = text if len(text) <= length else f"{text[: length - 1]}…"
    return cut.encode(errors="replace").decode()


def error_of(detail: teacher_pb2.ErrorDetail) -> TokbridgeError:
    """Build the error a service sent; its details include `request_id` when the service named one."""
    details = {name: _parse(text) for name, text in detail.details.items() if name not in _NOT_A_DETAIL}
    if detail.request_id:
        details["request_id"] = detail.request_id
    return error_from_code(detail.code, detail.message, details)


def _parse(text: str) -> str | int | float:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
