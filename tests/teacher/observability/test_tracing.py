"""Traces over real sockets: the caller's span and the service's are one trace; nothing happens unless configured."""

import subprocess
import sys

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from support.otlp_collector import collecting
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.client import TeacherClient
from tokbridge.errors import InvalidConfigError, TokbridgeError
from tokbridge_teacher.observability.calls import CallRecord, EndedRequest, ObservedRequest
from tokbridge_teacher.observability.outcomes import OK
from tokbridge_teacher.observability.tracing import RequestTracer, open_tracer

STAGES = ["prepare", "queue", "device pass", "encode"]


def recording(**options) -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(**options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


@pytest.fixture
def service_spans(built_teacher, monkeypatch) -> InMemorySpanExporter:
    """What the service traces, sampled only where the caller does."""
    provider, exporter = recording(sampler=ParentBased(ALWAYS_OFF))
    monkeypatch.setattr(built_teacher.service.observer, "_tracer", RequestTracer(provider, "m"))
    return exporter


async def test_client_and_service_share_one_trace_over_grpc(
    built_teacher, service_spans, student_registration, student_profile
):
    provider, _ = recording()
    tracer = provider.get_tracer("trainer")
    async with (
        served_over_grpc(built_teacher.service) as target,
        TeacherClient(target, max_divergence=None) as client,
    ):
        await client.connect(student_registration)
        with tracer.start_as_current_span("step") as step:
            await client.score(request_for(student_profile, request_id="traced-1"))
    root, *children = sorted(service_spans.get_finished_spans(), key=lambda span: span.name != "tokbridge.score")
    assert root.context.trace_id == step.get_span_context().trace_id
    assert root.parent.span_id == step.get_span_context().span_id
    assert root.kind is trace.SpanKind.SERVER
    assert (root.attributes["tokbridge.request_id"], root.attributes["tokbridge.outcome"]) == ("traced-1", "ok")
    assert sorted(span.name for span in children) == sorted(STAGES)
    for span in children:
        assert span.context.trace_id == root.context.trace_id
        assert span.parent.span_id == root.context.span_id
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time, span.name
    begin = {span.name: span.start_time for span in children}
    assert begin["prepare"] < begin["queue"] < begin["device pass"]
    assert step.start_time <= root.start_time <= root.end_time <= step.end_time


def test_the_header_of_an_http_call_is_read(built_teacher, service_spans):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with served_over_http(built_teacher.service) as url:
        httpx.post(f"{url}/v1/score", content=b"{", headers={"traceparent": parent})
        httpx.post(f"{url}/v1/score", content=b"{", headers={"traceparent": "nonsense"})
    (span,) = service_spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert (span.attributes["tokbridge.outcome"], span.attributes["tokbridge.reason"]) == ("refused", "invalid_request")


async def test_a_refused_request_has_the_stages_it_reached(
    built_teacher, service_spans, student_registration, student_profile
):
    tracer = recording()[0].get_tracer("trainer")
    async with (
        served_over_grpc(built_teacher.service) as target,
        TeacherClient(target, max_divergence=None) as client,
    ):
        await client.connect(student_registration)
        with tracer.start_as_current_span("step"), pytest.raises(TokbridgeError):
            await client.score(request_for(student_profile, stop_id=0))
    assert [span.name for span in service_spans.get_finished_spans()] == ["prepare", "tokbridge.score"]


async def test_without_a_tracer_a_traced_call_is_answered_all_the_same(
    built_teacher, student_registration, student_profile
):
    tracer = recording()[0].get_tracer("trainer")
    async with (
        served_over_grpc(built_teacher.service) as target,
        TeacherClient(target, max_divergence=None) as client,
    ):
        await client.connect(student_registration)
        with tracer.start_as_current_span("step"):
            assert (await client.score(request_for(student_profile))).rows.num_rows


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        (None, {}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ("http://127.0.0.1:1", {}, True),
        ("http://127.0.0.1:1", {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_off_unless_they_are_configured(endpoint, environ, wanted):
    tracer = open_tracer("m", endpoint, environ)
    assert (tracer is not None) == wanted
    if tracer is not None:
        tracer.close()


def test_configured_without_the_packages_it_says_which_extra_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(InvalidConfigError, match=r"tokbridge\[otel\]"):
        open_tracer("m", "http://127.0.0.1:1", {})


def test_a_service_without_traces_imports_nothing_of_opentelemetry():
    code = (
        "import sys, tokbridge_teacher.observability.observer, tokbridge_teacher.observability.tracing as t;"
        "assert t.open_tracer('m', None, {}) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_spans_reach_a_collector():
    """A collector that speaks OTLP over gRPC gets what the tracer sends when it closes."""
    with collecting() as collector:
        tracer = open_tracer("m", collector.endpoint, {})
        trace_id = tracer.trace(EndedRequest(ObservedRequest("r", "", 1.0, call=CallRecord("grpc")), OK, 2.0))
        tracer.close()
    (span,) = collector.spans
    assert collector.service_names == {"tokbridge-teacher"}
    assert span.trace_id.hex() == trace_id
    assert span.end_time_unix_nano - span.start_time_unix_nano == 10**9
