"""Typed errors as gRPC statuses, with their serialized detail in the trailing metadata."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tokbridge.error_mapping import ERROR_TRAILER_KEY, RETRY_AFTER_DETAIL, detail_of
from tokbridge.errors import ErrorCode, TokbridgeError
from tokbridge_teacher.faults import internal_faults
from tokbridge_teacher.protocols.call_records import REQUEST_ID_HEADER

STATUS_TIMEOUT_S = 600.0
"""For a client to take the status of its call; one that reads nothing for so long is left without."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Standard trailing metadata: milliseconds to wait before a retry."""

STATUS_BY_CODE: dict[ErrorCode, grpc.StatusCode] = {
    ErrorCode.UNKNOWN_STUDENT: grpc.StatusCode.NOT_FOUND,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.LIMIT_EXCEEDED: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNSUPPORTED_MODE: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.UNSUPPORTED_TEMPLATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.NON_FINITE_LOGITS: grpc.StatusCode.DATA_LOSS,
    ErrorCode.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorCode.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.SELF_TEST_FAILED: grpc.StatusCode.INTERNAL,
}
"""Status of every code that is not the caller's argument; all others are INVALID_ARGUMENT."""

Context = grpc.aio.ServicerContext


@asynccontextmanager
async def typed_errors(context: Context, request_id: str) -> AsyncIterator[None]:
    """End the call as `refuse_call` does when the body raises a typed error; its id is in the trailing metadata."""
    context.set_trailing_metadata(((REQUEST_ID_HEADER, request_id),))
    try:
        with internal_faults(request_id):
            yield
    except TokbridgeError as error:
        await refuse_call(context, error, request_id)


async def refuse_call(context: Context, error: TokbridgeError, request_id: str) -> None:
    """End a call with the status of a typed error.

    Raises:
        asyncio.CancelledError: nobody takes the status: the client reads nothing, or its connection has ended, before
            grpc.aio could cancel this coroutine itself.
    """
    detail = detail_of(error, request_id)
    serialized: Any = detail.SerializeToString()
    status = STATUS_BY_CODE.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
    trailers = ((REQUEST_ID_HEADER, request_id), (ERROR_TRAILER_KEY, serialized), *_pushback(error))
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            await context.abort(status, detail.message, trailing_metadata=trailers)
    except (TimeoutError, grpc.aio.InternalError):
        raise asyncio.CancelledError from None


def _pushback(error: TokbridgeError) -> list[tuple[str, str]]:
    """gRPC's own trailer for a wait before the next try, where an error says how long that is."""
    if RETRY_AFTER_DETAIL not in error.details:
        return []
    return [(PUSHBACK_KEY, str(math.ceil(float(error.details[RETRY_AFTER_DETAIL]) * 1000)))]
