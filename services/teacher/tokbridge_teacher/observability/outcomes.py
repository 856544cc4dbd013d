"""How a call or a pass ended, in the words that metrics and logs use. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tokbridge.errors import ErrorCode, TokbridgeError
from tokbridge_teacher.backends.base import BackendLostError, DeviceMemoryError
from tokbridge_teacher.cancellations import CancelReason, reason_of_error


class Outcome(StrEnum):
    """Every call ends in one of these."""

    OK = "ok"
    REFUSED = "refused"
    """Turned away before it was computed: the caller's fault, or no room."""
    CANCELLED = "cancelled"
    """Cut short after it was admitted; nobody's fault, or the operator's."""
    FAILED = "failed"
    """The service's own fault."""


@dataclass(frozen=True)
class End:
    """An outcome and its reason: an error code or a `CancelReason`; empty for ok."""

    outcome: Outcome
    reason: str = ""


class PassFault(StrEnum):
    """What ended a pass before its time."""

    OUT_OF_MEMORY = "out_of_memory"
    BACKEND_LOST = "backend_lost"
    FAULT = "fault"


OK = End(Outcome.OK)
FAULTS = (ErrorCode.INTERNAL, ErrorCode.NON_FINITE_LOGITS)
"""Errors of a call that are the service's own."""


def end_of_error(error: TokbridgeError, *, admitted: bool) -> End:
    """How a call ended that an error ended; `admitted`: work on it had begun."""
    if error.code in FAULTS:
        return End(Outcome.FAILED, error.code.value)
    if admitted and (reason := reason_of_error(error)):
        return cancelled(reason)
    if error.code is ErrorCode.CANCELLED:
        return cancelled(CancelReason.CLIENT_GONE)
    return End(Outcome.REFUSED, error.code.value)


def cancelled(reason: CancelReason) -> End:
    """A call cut short."""
    return End(Outcome.CANCELLED, reason.value)


def pass_fault(error: TokbridgeError) -> PassFault:
    """The reason that a failed pass is counted by."""
    if isinstance(error, BackendLostError):
        return PassFault.BACKEND_LOST
    return PassFault.OUT_OF_MEMORY if isinstance(error, DeviceMemoryError) else PassFault.FAULT
