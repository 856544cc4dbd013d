"""Every metric of a service: name, type, labels, meaning. `docs/metrics.md` is this table in words.

All have the label `model_name` beside those named here. Names are those of the time series: a counter ends in `_total`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
TOKENS_BUCKETS = tuple(2**power for power in range(6, 19))


class MetricType(StrEnum):
    """Types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric."""

    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    """Beside `model_name`."""
    buckets: tuple[float, ...] = SECONDS_BUCKETS
    """Upper bounds; of a histogram."""


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricType.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, MetricType.GAUGE, text, labels)


def _seconds(name: str, text: str) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, text)


REQUESTS = _counter(
    "tokbridge_requests_total",
    "Score requests that ended. Outcome: ok, refused, cancelled, failed. Reason: an error code, of a cancellation "
    "what it is counted by; empty for ok.",
    "outcome",
    "reason",
)
REQUEST_SECONDS = _seconds("tokbridge_request_seconds", "From arrival to the last row, of requests answered.")
CALLER_REQUESTS = _counter(
    "tokbridge_caller_requests_total", "Score requests that ended, by the name of the API key.", "caller", "outcome"
)
CALLER_TOKENS = _counter(
    "tokbridge_caller_tokens_total", "Teacher tokens of answered requests, by the name of the API key.", "caller"
)
REGISTRATIONS = _counter(
    "tokbridge_registrations_total", "Registrations of students that ended. As for requests.", "outcome", "reason"
)
REFUSALS = _counter(
    "tokbridge_refusals_total",
    "Calls of any kind turned away before they were computed, by error code; `overloaded`: the service, or the "
    "caller's part of it, is full.",
    "reason",
)
CANCELLATIONS = _counter(
    "tokbridge_cancellations_total",
    "Admitted score requests cut short: client_gone, deadline, shutdown, slow_reader.",
    "reason",
)
AUTHENTICATION_FAILURES = _counter(
    "tokbridge_authentication_failures_total",
    "Calls without a valid API key, by protocol: grpc, http. They count nowhere else.",
    "protocol",
)
PREPARE_SECONDS = _seconds(
    "tokbridge_prepare_seconds", "From arrival to a planned response: waiting for a thread, template, alignment."
)
PREPARE_WAITING = _gauge("tokbridge_prepare_waiting", "Preparations that no thread has begun.")
QUEUE_REQUESTS = _gauge("tokbridge_queue_requests", "Prepared responses that wait for the model.")
QUEUE_TOKENS = _gauge("tokbridge_queue_tokens", "Their teacher tokens.")
QUEUE_WAIT_SECONDS = _seconds(
    "tokbridge_queue_wait_seconds", "From prepared to the begin of the pass, or to the end of a request without one."
)
RUNNING_REQUESTS = _gauge("tokbridge_running_requests", "Responses in a pass.")
RUNNING_TOKENS = _gauge("tokbridge_running_tokens", "Their teacher tokens.")
ADMITTED_REQUESTS = _gauge("tokbridge_admitted_requests", "Requests held: from arrival until the last row was taken.")
ADMITTED_TOKENS = _gauge("tokbridge_admitted_tokens", "Their teacher tokens, of those not prepared an estimate.")
ADMITTED_RESULT_BYTES = _gauge("tokbridge_admitted_result_bytes", "Most bytes of rows that can wait for their callers.")
BATCH_TOKENS = Metric(
    "tokbridge_batch_tokens",
    MetricType.HISTOGRAM,
    "Teacher tokens of a pass, shared prompts counted for every response.",
    buckets=TOKENS_BUCKETS,
)
DEVICE_PASS_SECONDS = _seconds("tokbridge_device_pass_seconds", "Time the model spent on one pass, pauses left out.")
FAILED_PASSES = _counter(
    "tokbridge_failed_passes_total",
    "Passes that a fault ended: out_of_memory, backend_lost (the process ends), fault (any other).",
    "reason",
)
ENCODE_SECONDS = _seconds("tokbridge_encode_seconds", "Time spent on the wire form of one response.")
WIRE_BYTES = _counter("tokbridge_wire_bytes_total", "Bytes of answers to score requests, before any compression.")
ROWS = _counter("tokbridge_rows_total", "Rows released, by case.", "case")
RESIDUAL_MASS = _counter(
    "tokbridge_residual_mass_total",
    "Probability that no cell holds, summed over rows: unmapped, control, truncated. Over rows of aligned, interior, "
    "spanning and stop cases it is a mean.",
    "kind",
)
TEACHER_TOKENS = _counter(
    "tokbridge_teacher_tokens_total",
    "Teacher tokens of answered requests: prompt, of these shared_prompt (computed once for several), content.",
    "kind",
)
READY = _gauge("tokbridge_ready", "1 while requests are taken; 0 while the service stops or its model fails.")
STUDENTS = _gauge("tokbridge_students", "Students registered.")
DEVICE_MEMORY = _gauge(
    "tokbridge_device_memory_bytes",
    "Memory of the device: allocated (tensors), reserved (by the allocator), used (by all processes), total. No series "
    "on a CPU.",
    "kind",
)
BUILD_INFO = _gauge("tokbridge_build_info", "Always 1.", "version", "backend", "dtype", "device")

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""In the order above, the order of a request."""
