"""Answers of the service as protobuf messages, for both protocols."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from tokbridge.modes import Routing, routing_to_proto
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2
from tokbridge.wire import checksum, encode_rows
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.observability.calls import CallRecord
from tokbridge_teacher.routing.statistics import RoutingStatistics
from tokbridge_teacher.service import Registered, TeacherService


async def score_messages(
    service: TeacherService,
    student_id: str,
    request: ScoreRequest,
    caller: Caller = ANONYMOUS,
    deadline_s: float | None = None,
    call: CallRecord | None = None,
) -> AsyncGenerator[bytes]:
    """Rows as they are computed, then the trailer with their number and checksum: `ScoreResponse`, serialized, none of
    them above the service's `max_message_bytes` unless a single row is.

    Raises:
        InternalError: a part could not be encoded; the service counts it as its own fault.
        TokbridgeError: as `TeacherService.score`.
    """
    call = call or CallRecord()
    encoder = _Encoder(service.limits.max_message_bytes)
    async with aclosing(service.score(student_id, request, caller, deadline_s, call)) as parts:
        async for part in parts:
            started_s = time.monotonic()
            try:
                messages = encoder.encode(part)
            except Exception as fault:  # raised on: the service is told that it ends here, and whose fault it is
                await parts.athrow(fault)
                raise
            call.encoded(started_s, time.monotonic(), sum(map(len, messages)))
            for message in messages:
                yield message


class _Encoder:
    """The wire form of one answer, part by part."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one message; rows that take more are split among several."""
        self._max_bytes = max_bytes
        self._num_rows = 0
        self._checksum = 0

    def encode(self, part: TargetRows | ScoreSummary) -> list[bytes]:
        """Serialized `ScoreResponse`s, one as a rule."""
        if isinstance(part, ScoreSummary):
            trailer = part.to_proto(self._num_rows, self._checksum)
            return [teacher_pb2.ScoreResponse(trailer=trailer).SerializeToString()]
        rows = encode_rows(part)
        message = teacher_pb2.ScoreResponse(rows=rows).SerializeToString()
        if len(message) > self._max_bytes and part.num_rows > 1:
            middle = part.num_rows // 2
            return self.encode(part.slice(0, middle)) + self.encode(part.slice(middle, part.num_rows))
        self._num_rows += part.num_rows
        self._checksum = checksum(rows, self._checksum)
        return [message]


def registration_message(registered: Registered) -> teacher_pb2.RegisterStudentResponse:
    """The answer to a registration."""
    return teacher_pb2.RegisterStudentResponse(
        student_id=registered.student_id,
        already_known=registered.already_known,
        statistics=_statistics(registered.statistics),
    )


def _statistics(statistics: Iterable[RoutingStatistics]) -> list[teacher_pb2.RoutingStatistics]:
    return [
        teacher_pb2.RoutingStatistics(
            routing=routing_to_proto(Routing(counts.routing)),
            teacher_content_tokens=counts.teacher_content_tokens,
            identical=counts.identical,
            shortened=counts.shortened,
            unmapped=counts.unmapped,
            routed_to_dead_tokens=counts.routed_to_dead_tokens or 0,
            not_what_the_encoder_emits=counts.not_what_the_encoder_emits or 0,
            compile_seconds=counts.compile_seconds,
            from_cache=counts.from_cache,
        )
        for counts in statistics
    ]
