"""Traces of requests with OpenTelemetry: under the caller's span one for the request, below it one for every stage.

Spans are made when a request ends, from the readings of the clock that metrics and log use as well, so nothing is
carried through the stages. This module imports OpenTelemetry only when traces are configured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from tokbridge import __version__
from tokbridge.trace_provider import open_provider
from tokbridge_teacher.observability.calls import EndedRequest
from tokbridge_teacher.observability.outcomes import Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_SERVICE_NAME = "tokbridge-teacher"

Stage = tuple[str, float, float]
"""Name, begin and end of a child span."""


class RequestTracer:
    """Makes the spans of requests."""

    def __init__(self, provider: TracerProvider, model_name: str, wall_ns: Callable[[], int] = time.time_ns) -> None:
        """`wall_ns`: nanoseconds since 1970."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("tokbridge.teacher", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace
        self._model_name = model_name
        self._wall_ns = wall_ns

    def trace(self, ended: EndedRequest) -> str:
        """Spans of a request that has just ended; gives its trace id, empty if it is not sampled."""
        now_ns = self._wall_ns()

        def wall_ns(reading_s: float) -> int:
            return now_ns - round((ended.ended_s - reading_s) * 1e9)

        parent = self._propagator.extract(dict(ended.request.call.trace_headers))
        span = self._tracer.start_span(
            "tokbridge.score",
            parent,
            self._trace.SpanKind.SERVER,
            self._attributes(ended),
            start_time=wall_ns(ended.request.received_s),
        )
        below = self._trace.set_span_in_context(span)
        for name, begin_s, end_s in stages(ended):
            self._tracer.start_span(name, below, start_time=wall_ns(begin_s)).end(wall_ns(end_s))
        if ended.end.outcome is Outcome.FAILED:
            span.set_status(self._trace.StatusCode.ERROR, ended.end.reason)
        span.end(now_ns)
        context = span.get_span_context()
        return self._trace.format_trace_id(context.trace_id) if context.trace_flags.sampled else ""

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _attributes(self, ended: EndedRequest) -> dict[str, str | int]:
        request = ended.request
        return {
            "tokbridge.request_id": request.request_id,
            "tokbridge.model_name": self._model_name,
            "tokbridge.caller": request.caller.name,
            "tokbridge.outcome": ended.end.outcome.value,
            "tokbridge.reason": ended.end.reason,
            "tokbridge.tokens": request.num_tokens,
            "tokbridge.rows": request.num_rows,
            "tokbridge.wire_bytes": request.call.wire_bytes,
            "rpc.system": request.call.protocol,
        }


def stages(ended: EndedRequest) -> Iterator[Stage]:
    """The stages that a request reached; pieces of the answer are encoded between rows, which is drawn as one stretch
    at the end of the last.
    """
    request = ended.request
    if request.admitted:
        yield "prepare", request.received_s, request.prepared_s or ended.ended_s
    if request.queue is not None:
        started_s = request.queue.started_s
        yield "queue", request.queue.queued_s, started_s or ended.ended_s
        if started_s is not None:
            yield "device pass", started_s, request.computed_s or ended.ended_s
    if request.call.encoded_s is not None:
        yield "encode", request.call.encoded_s - request.call.encode_seconds, request.call.encoded_s


def open_tracer(model_name: str, endpoint: str | None, environ: Mapping[str, str] = os.environ) -> RequestTracer | None:
    """A tracer that sends to a collector; None unless an endpoint or a standard variable is given.

    Raises:
        InvalidConfigError: traces are configured, and the packages are not installed.
    """
    provider = open_provider(_SERVICE_NAME, endpoint, environ)
    return None if provider is None else RequestTracer(provider, model_name)
