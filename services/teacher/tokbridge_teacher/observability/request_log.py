"""One log line for every call that reached the service: facts, never text of a conversation, never a key."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass

from tokbridge_teacher.observability.calls import EndedRequest
from tokbridge_teacher.observability.outcomes import Outcome

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RequestLine:
    """Fields of a line; each is an attribute of the log record."""

    call: str
    """score, register, or body for one that was refused before it was read."""
    request_id: str
    outcome: str
    reason: str
    protocol: str
    caller: str = ""
    student: str = ""
    tokens: int = 0
    """Teacher tokens of prompt and content."""
    rows: int = 0
    wire_bytes: int = 0
    seconds: float
    prepare_seconds: float | None = None
    queue_seconds: float | None = None
    encode_seconds: float | None = None
    trace_id: str = ""


def score_line(ended: EndedRequest, trace_id: str) -> RequestLine:
    """The line of a score request."""
    request = ended.request
    prepared_s, queue_seconds = request.prepared_s, request.queue_seconds(ended.ended_s)
    return RequestLine(
        call="score",
        request_id=request.request_id,
        outcome=ended.end.outcome.value,
        reason=ended.end.reason,
        protocol=request.call.protocol,
        caller=request.caller.name,
        student=request.student_id,
        tokens=request.num_tokens,
        rows=request.num_rows,
        wire_bytes=request.call.wire_bytes,
        seconds=round(ended.seconds, 6),
        prepare_seconds=None if prepared_s is None else round(prepared_s - request.received_s, 6),
        queue_seconds=None if queue_seconds is None else round(queue_seconds, 6),
        encode_seconds=round(request.call.encode_seconds, 6),
        trace_id=trace_id,
    )


def write_line(line: RequestLine) -> None:
    """Log it; as a warning when the service itself failed."""
    level = logging.WARNING if line.outcome == Outcome.FAILED else logging.INFO
    _log.log(level, "%s %s", line.call, line.outcome, extra=asdict(line))
