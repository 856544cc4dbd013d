"""The trace context of the caller reaches the service; without a span there is none."""

import sys

from opentelemetry.sdk.trace import TracerProvider

from support.fake_teacher import FakeTeacher, make_request, make_student, serving
from tokbridge.client import TeacherClient, tracing
from tokbridge.client.tracing import trace_metadata


def test_outside_a_span_there_is_nothing_to_pass_on():
    assert trace_metadata() == ()


async def test_the_service_gets_the_context_of_the_span_a_call_is_made_in():
    teacher = FakeTeacher()
    tracer = TracerProvider().get_tracer("test")
    async with serving(teacher) as port, TeacherClient(f"127.0.0.1:{port}") as client:
        await client.connect(make_student())
        with tracer.start_as_current_span("step") as span:
            await client.score(make_request())
    made = span.get_span_context()
    expected = f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags:02x}"
    assert teacher.metadata[-1]["traceparent"] == expected
    assert "traceparent" not in teacher.metadata[0]


def test_without_opentelemetry_there_is_nothing_either(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing._propagate.cache_clear()
    try:
        assert trace_metadata() == ()
    finally:
        tracing._propagate.cache_clear()
