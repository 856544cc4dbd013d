"""A collector of traces that speaks OTLP over gRPC on loopback, in threads of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it gets."""

    endpoint: str = ""
    resource_spans: list[trace_pb2.ResourceSpans] = field(default_factory=list)

    def Export(self, request, context):
        self.resource_spans += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[trace_pb2.Span]:
        return [span for each in self.resource_spans for scope in each.scope_spans for span in scope.spans]

    @property
    def service_names(self) -> set[str]:
        return {
            attribute.value.string_value
            for each in self.resource_spans
            for attribute in each.resource.attributes
            if attribute.key == "service.name"
        }


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector for the length of a block; what it got can be read afterwards."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0)
