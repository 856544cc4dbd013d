"""A trace leads from a training step's sample into the teacher that scored it, where traces are configured."""

import subprocess
import sys

import pytest

from support.fake_teacher import FakeTeacher, Fault, make_request, make_student, serving
from support.otlp_collector import collecting
from support.training import make_config, make_sample
from tokbridge.errors import ChatTemplateError
from tokbridge_trainer.feed import Feed
from tokbridge_trainer.sample_traces import NoTraces, open_sample_traces
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.teachers.listing import configured_teachers
from tokbridge_trainer.teachers.member import StudentSide

KEY = SampleKey(7, 3, 1)
REQUEST = make_request()
SAMPLE = make_sample([1, 2], REQUEST.token_ids.tolist(), REQUEST.stop_id, KEY)


async def score(teacher: FakeTeacher, traces) -> None:
    """Scores one sample through a feed with a client of its own."""
    async with serving(teacher) as port:
        config = make_config(teacher={"urls": [f"127.0.0.1:{port}"], "on_failure": "drop"})
        feed = Feed(configured_teachers(config), StudentSide(make_student(), {}), traces=traces)
        await feed.connect()
        await feed.submit(SAMPLE)
        await feed.collect(KEY.step, 1)
        await feed.close()


async def test_the_span_of_a_sample_is_the_parent_of_the_teachers():
    teacher = FakeTeacher()
    with collecting() as collector:
        await score(teacher, open_sample_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}))
    (span,) = collector.spans
    assert collector.service_names == {"tokbridge-trainer"}
    (parent,) = [call["traceparent"] for call in teacher.metadata if "traceparent" in call]  # no call but the score
    assert parent.split("-")[1:3] == [span.trace_id.hex(), span.span_id.hex()]
    attributes = {attribute.key: attribute.value.int_value for attribute in span.attributes}
    assert attributes == {"tokbridge.step": 7, "tokbridge.prompt_index": 3, "tokbridge.sample_index": 1}


async def test_a_sample_that_fails_is_a_span_that_says_why_and_quotes_nothing():
    teacher = FakeTeacher()
    teacher.script.append(Fault(error=ChatTemplateError("what somebody wrote")))
    with collecting() as collector:
        await score(teacher, open_sample_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}))
    (span,) = collector.spans
    assert span.status.message == "chat_template_failed"
    assert b"somebody" not in span.SerializeToString()


async def test_without_configuration_no_trace_begins(monkeypatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    teacher = FakeTeacher()
    await score(teacher, None)
    assert not any("traceparent" in call for call in teacher.metadata)


@pytest.mark.parametrize("environ", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_SDK_DISABLED": "true"}])
def test_off_it_imports_nothing_of_opentelemetry(environ):
    assert isinstance(open_sample_traces(environ), NoTraces)
    code = (
        "import sys, tokbridge_trainer.sample_traces as traces;"
        f"traces.open_sample_traces({environ!r});"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
