"""What the failure of a gRPC call means: the typed error that the service sent, else one that the status stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

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

STATUS_KEY = "grpc-status-details-bin"
"""Trailing metadata with a `google.rpc.Status`; a proxy that refuses may put a `RetryInfo` into it."""

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
    wait_s = _wait_s(trailers)
    if wait_s is not None:
        error.details.setdefault(RETRY_AFTER_DETAIL, wait_s)
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


def _wait_s(trailers: Mapping[str, str | bytes]) -> float | None:
    """Seconds to wait that the trailing metadata ask for, in either of the two forms; None: they say nothing."""
    pushback, status = trailers.get(PUSHBACK_KEY), trailers.get(STATUS_KEY)
    if pushback is not None:
        return _seconds(pushback)
    return _retry_delay_s(status) if isinstance(status, bytes) else None


def _retry_delay_s(serialized: bytes) -> float | None:
    info = RetryInfo()
    try:
        if any(detail.Unpack(info) for detail in Status.FromString(serialized).details):
            return info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    except DecodeError:
        pass  # whatever it is, it is no wait
    return None


def _seconds(pushback_ms: str | bytes) -> float:
    try:
        return int(pushback_ms) / 1000
    except ValueError:
        return -1.0  # the gRPC specification reads a malformed pushback as "do not retry"
