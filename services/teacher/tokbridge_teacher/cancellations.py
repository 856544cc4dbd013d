"""Why a request ended before its answer was whole: the reasons a service counts. Pure."""

from __future__ import annotations

from enum import StrEnum

from tokbridge.errors import DeadlineExceededError, ShuttingDownError, TokbridgeError

_TOLERANCE_S = 0.02
_TOLERANCE_PART = 0.02


class CancelReason(StrEnum):
    """Labels of the cancellation counter."""

    CLIENT_GONE = "client_gone"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"
    SLOW_READER = "slow_reader"


class SlowReaderError(DeadlineExceededError):
    """The caller took none of its rows for longer than the service keeps them."""


def reason_of_error(error: TokbridgeError) -> CancelReason | None:
    """The reason behind an error that cut a request short; None for an error of another kind."""
    if isinstance(error, SlowReaderError):
        return CancelReason.SLOW_READER
    if isinstance(error, DeadlineExceededError):
        return CancelReason.DEADLINE
    return CancelReason.SHUTDOWN if isinstance(error, ShuttingDownError) else None


def reason_of_departure(*, received_s: float, now_s: float, deadline_s: float | None, stopping: bool) -> CancelReason:
    """Why nobody takes the answer any more.

    A caller whose deadline passes hangs up by its own clock, and gRPC rounds the deadline it announces upwards: a
    departure that close before the deadline is the deadline's.
    """
    if deadline_s is not None:
        tolerance_s = _TOLERANCE_S + _TOLERANCE_PART * (deadline_s - received_s)
        if now_s >= deadline_s - tolerance_s:
            return CancelReason.DEADLINE
    return CancelReason.SHUTDOWN if stopping else CancelReason.CLIENT_GONE
