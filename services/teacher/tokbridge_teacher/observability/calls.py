"""What is known of one score request: of its call, by the protocol; of its way through the service, stage by stage.

Readings of the clock are those of `time.monotonic`, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokbridge.results import ScoreSummary
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.observability.outcomes import End

TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C trace context, as HTTP headers and as gRPC metadata."""

PROTOCOLS = ("grpc", "http")


@dataclass
class CallRecord:
    """The protocol's side; it adds what it encodes."""

    protocol: str = ""
    """One of `PROTOCOLS`; empty for a call from within the process."""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    """Of `TRACE_HEADERS`, those that came."""
    encode_seconds: float = 0.0
    encoded_s: float | None = None
    """When the last piece was in its wire form."""
    wire_bytes: int = 0

    def encoded(self, started_s: float, ended_s: float, num_bytes: int) -> None:
        """One piece of the answer has its wire form."""
        self.encode_seconds += ended_s - started_s
        self.encoded_s = ended_s
        self.wire_bytes += num_bytes


@dataclass(frozen=True)
class QueueTimes:
    """One response in the queue and in the model."""

    queued_s: float
    started_s: float | None
    """When its pass began; None: it never did."""


@dataclass
class ObservedRequest:
    """One score request; stages that were not reached are None."""

    request_id: str
    student_id: str
    """Of a registered student; empty for any other."""
    received_s: float
    caller: Caller = ANONYMOUS
    call: CallRecord = field(default_factory=CallRecord)
    admitted: bool = False
    prepared_s: float | None = None
    num_tokens: int = 0
    """Teacher tokens of prompt and content, once prepared."""
    queue: QueueTimes | None = None
    computed_s: float | None = None
    """When the last row was assembled."""
    num_rows: int = 0
    """Rows released."""
    summary: ScoreSummary | None = None
    """Of an answer that was handed over whole."""
    reads_too_slowly: bool = False
    """Its rows were dropped because nobody took them."""

    def prepared(self, now_s: float, num_tokens: int) -> None:
        """It is planned and has its size."""
        self.prepared_s, self.num_tokens = now_s, num_tokens

    def queue_seconds(self, ended_s: float) -> float | None:
        """Time in the queue, of a request that ended at `ended_s`; None: it never got there."""
        if self.queue is None:
            return None
        return (ended_s if self.queue.started_s is None else self.queue.started_s) - self.queue.queued_s


@dataclass(frozen=True)
class EndedRequest:
    """A request and its end."""

    request: ObservedRequest
    end: End
    ended_s: float

    @property
    def seconds(self) -> float:
        """From arrival to the end."""
        return self.ended_s - self.request.received_s
