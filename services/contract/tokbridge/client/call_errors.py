"""What the failure of a gRPC call means: the typed error that the service sent, else one that the status stands for."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from tokbridge.error_mapping import ERROR_TRAILER_KEY, RETRY_AFTER_DETAIL, error_of
from tokbridge.errors import (
    CorruptStreamError,
    DeadlineExceededError,
    InternalError,
    InvalidConfigError,
    LimitExceededError,
    OverloadedError,
    TeacherMismatchError,
    TeacherUnavailableError,
    TokbridgeError,
    UnauthenticatedError,
)
from tokbridge.v1 import teacher_pb2

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Standard trailing metadata: milliseconds to wait before a retry; negative forbids it."""

_TOO_LARGE = "message larger than max"
"""What gRPC says when a message is over a size limit; other exhaustion passes."""

_NO_TRUST = ("CERTIFICATE_VERIFY_FAILED", "Hostname Verification Check failed", "WRONG_VERSION_NUMBER")
"""What gRPC says when a TLS handshake fails for a reason that would recur, in the order: the authority, the name in the
certificate, a server that does not speak TLS. A server that misses our certificate just hangs up."""

_BY_STATUS: dict[grpc.StatusCode, Callable[[str], TokbridgeError]] = {
    grpc.StatusCode.UNAVAILABLE: TeacherUnavailableError,
    # Only a service that stops cancels our calls; our own cancellation never gets here.
    grpc.StatusCode.CANCELLED: TeacherUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    # A service names its own faults in a detail; without one, a transport or a proxy broke the stream.
    grpc.StatusCode.INTERNAL: CorruptStreamError,
    grpc.StatusCode.UNKNOWN: CorruptStreamError,
    grpc.StatusCode.DATA_LOSS: CorruptStreamError,
    grpc.StatusCode.UNIMPLEMENTED: TeacherMismatchError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: InvalidConfigError,
}


def error_of_call(failure: grpc.aio.AioRpcError) -> TokbridgeError:
    """The typed error of a failed call: the one the service sent, else one that its status stands for.

    The failure loses its traceback: its frames hold the call, and a call holds its channel open after `close`, for as
    long as somebody keeps the error.
    """
    failure.__traceback__ = None
    trailers = dict(failure.trailing_metadata() or ())
    error = _sent_error(trailers.get(ERROR_TRAILER_KEY)) or _error_of_status(failure)
    pushback = trailers.get(PUSHBACK_KEY)
    if pushback is not None:
        error.details.setdefault(RETRY_AFTER_DETAIL, _seconds(pushback))
    return error


def _sent_error(payload: str | bytes | None) -> TokbridgeError | None:
    if not isinstance(payload, bytes):
        return None
    try:
        return error_of(teacher_pb2.ErrorDetail.FromString(payload))
    except DecodeError:
        return None


def _error_of_status(failure: grpc.aio.AioRpcError) -> TokbridgeError:
    status = failure.code()
    reason = failure.details() or "no reason given"
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in reason:
        return LimitExceededError(f"the call ended with {status.name}: {reason}")
    if status is grpc.StatusCode.UNAVAILABLE and any(sign in reason for sign in _NO_TRUST):
        return InvalidConfigError(f"no TLS connection comes about: {reason}", field="tls")
    return _BY_STATUS.get(status, InternalError)(f"the call ended with {status.name}: {reason}")


def _seconds(pushback_ms: str | bytes) -> float:
    try:
        return int(pushback_ms) / 1000
    except ValueError:
        return -1.0  # the gRPC specification reads a malformed pushback as "do not retry"
