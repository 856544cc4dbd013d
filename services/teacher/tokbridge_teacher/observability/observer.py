"""Hears of every call and tells metrics, log and trace how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokbridge.errors import TokbridgeError
from tokbridge.results import ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.cancellations import CancelReason, reason_of_departure
from tokbridge_teacher.faults import internal_faults
from tokbridge_teacher.observability import catalogue
from tokbridge_teacher.observability.calls import CallRecord, EndedRequest, ObservedRequest
from tokbridge_teacher.observability.metrics import ServiceMetrics
from tokbridge_teacher.observability.outcomes import OK, End, Outcome, cancelled, end_of_error
from tokbridge_teacher.observability.request_log import RequestLine, score_line, write_line
from tokbridge_teacher.observability.tracing import RequestTracer


class RequestObserver:
    """Of one service. Calls are observed from the event loop."""

    def __init__(
        self,
        metrics: ServiceMetrics,
        tracer: RequestTracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tracer`: None makes no traces."""
        self.metrics = metrics
        self._tracer = tracer
        self._clock = clock

    @contextmanager
    def request(
        self,
        request_id: str,
        caller: Caller,
        call: CallRecord,
        *,
        deadline_s: float | None,
        stopping: Callable[[], bool],
    ) -> Iterator[ObservedRequest]:
        """Around one score request, which is told here how far it came; errors pass through.

        Args:
            request_id: well-formed.
            caller: whose work it is.
            call: the protocol's side.
            deadline_s: the caller's, to tell its departure from its deadline.
            stopping: whether the service takes no more.
        """
        request = ObservedRequest(request_id, "", self._clock(), caller, call)
        try:
            yield request
        except TokbridgeError as error:
            self._end(request, end_of_error(error, admitted=request.admitted))
            raise
        except (GeneratorExit, asyncio.CancelledError):
            self._end(request, self._end_of_departure(request, deadline_s, stopping()))
            raise
        else:
            self._end(request, OK)

    @contextmanager
    def reading(self, request_id: str, caller: Caller, call: CallRecord) -> Iterator[None]:
        """Around reading a score request: one that cannot be read is a request refused."""
        request = ObservedRequest(request_id, "", self._clock(), caller, call)
        try:
            with internal_faults(request_id):
                yield
        except TokbridgeError as error:
            self._end(request, end_of_error(error, admitted=False))
            raise

    def turned_away(self, request_id: str, protocol: str, error: TokbridgeError) -> None:
        """A call was refused before it was known what it asks for."""
        self.metrics.count_refusal(error.code.value)
        write_line(
            RequestLine(
                call="body",
                request_id=request_id,
                outcome=Outcome.REFUSED.value,
                reason=error.code.value,
                protocol=protocol,
                seconds=0.0,
            )
        )

    @contextmanager
    def registration(self, request_id: str, protocol: str, caller: Caller = ANONYMOUS) -> Iterator[None]:
        """Around one registration."""
        received_s, end = self._clock(), cancelled(CancelReason.CLIENT_GONE)
        try:
            with internal_faults(request_id):
                yield
            end = OK
        except TokbridgeError as error:
            end = end_of_error(error, admitted=False)
            raise
        finally:
            self.metrics.count_registration(end)
            write_line(
                RequestLine(
                    call="register",
                    request_id=request_id,
                    outcome=end.outcome.value,
                    reason=end.reason,
                    protocol=protocol,
                    caller=caller.name,
                    seconds=round(self._clock() - received_s, 6),
                )
            )

    def released(self, request: ObservedRequest, rows: TargetRows) -> None:
        """Rows of a request go to its caller."""
        request.num_rows += rows.num_rows
        self.metrics.count_rows(rows)

    def answered(self, request: ObservedRequest, summary: ScoreSummary) -> None:
        """All rows were handed over; whatever comes now, the request is answered."""
        request.computed_s = self._clock()
        request.summary = summary

    def close(self) -> None:
        """Send what is left of the traces."""
        if self._tracer is not None:
            self._tracer.close()

    def _end_of_departure(self, request: ObservedRequest, deadline_s: float | None, stopping: bool) -> End:
        if request.summary is not None:
            return OK
        if request.reads_too_slowly:
            return cancelled(CancelReason.SLOW_READER)
        return cancelled(
            reason_of_departure(
                received_s=request.received_s, now_s=self._clock(), deadline_s=deadline_s, stopping=stopping
            )
        )

    def _end(self, request: ObservedRequest, end: End) -> None:
        ended = EndedRequest(request, end, self._clock())
        self._count(ended)
        trace_id = self._tracer.trace(ended) if self._tracer is not None else ""
        write_line(score_line(ended, trace_id))

    def _count(self, ended: EndedRequest) -> None:
        request, metrics = ended.request, self.metrics
        metrics.count_request(ended.end, request.caller.name)
        if request.summary is not None:
            metrics.count_answer(request.summary, request.caller.name, ended.seconds)
        if request.prepared_s is not None:
            metrics.observe(catalogue.PREPARE_SECONDS, request.prepared_s - request.received_s)
        queue_seconds = request.queue_seconds(ended.ended_s)
        if queue_seconds is not None:
            metrics.observe(catalogue.QUEUE_WAIT_SECONDS, queue_seconds)
        if request.call.wire_bytes:
            metrics.count_encoding(request.call.encode_seconds, request.call.wire_bytes)
