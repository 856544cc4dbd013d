"""The gRPC channel to a teacher, and what its failures mean.

Retries and deadlines are not here: gRPC's own retries are off, so that one state machine counts every attempt.
"""

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
)
from tokbridge.v1 import teacher_pb2

MAX_MESSAGE_BYTES = 64 * 2**20
"""gRPC's default of 4 MiB is less than a long conversation or a large chunk of rows."""

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Standard trailing metadata: milliseconds to wait before a retry; negative forbids it."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
    # A restarted service is found soon; gRPC's own default backs off to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Notices a host that vanished without closing; more often than every 5 minutes, servers refuse pings by default.
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Each client its own connection: channels with equal options would share one, its backoff included.
    ("grpc.use_local_subchannel_pool", 1),
]

_TOO_LARGE = "message larger than max"
"""What gRPC says when a message is over a size limit; other exhaustion passes."""

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
    grpc.StatusCode.UNAUTHENTICATED: InvalidConfigError,
    grpc.StatusCode.PERMISSION_DENIED: InvalidConfigError,
}


def open_channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel to `address`, encrypted when there are credentials; connects when it is first used."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


def error_of_call(failure: grpc.aio.AioRpcError) -> TokbridgeError:
    """The typed error of a failed call: the one the service sent, else one that its status stands for."""
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
    return _BY_STATUS.get(status, InternalError)(f"the call ended with {status.name}: {reason}")


def _seconds(pushback_ms: str | bytes) -> float:
    try:
        return int(pushback_ms) / 1000
    except ValueError:
        return -1.0  # the gRPC specification reads a malformed pushback as "do not retry"
