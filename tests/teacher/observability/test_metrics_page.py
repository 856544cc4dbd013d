"""What a running service shows to Prometheus: all that the documentation names, and it moves as calls come and go."""

import asyncio
import re
from pathlib import Path

import grpc
import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from support.api_keys import LARGE_KEY, SMALL_KEY, bearer, two_callers
from support.gated_teacher import becomes, gated_teacher
from support.requests_for import request_for
from support.scrapes import samples, sum_of_series
from support.served import served_over_grpc, served_over_http
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge.wire import decode_rows
from tokbridge_teacher.backends.device_memory import device_memory
from tokbridge_teacher.observability.metrics import ServiceMetrics
from tokbridge_teacher.protocols.authentication import Authenticator

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(tokbridge_\w+)` \| (\w+) \| ([\w, ]*) \| (.+) \|$", re.MULTILINE)
MEMORY = "tokbridge_device_memory_bytes"


@pytest.fixture(scope="module")
def teacher(teacher_folder):
    with gated_teacher(teacher_folder, max_requests=2, chunk_rows=8, piece_tokens=64) as teacher:
        yield teacher


@pytest.fixture(autouse=True)
def _open_gate(teacher):
    yield
    teacher.gate.open.set()


class Served:
    """Both protocols of one teacher, a student registered at it, and its metrics as they are scraped."""

    def __init__(self, url, stub, teacher, registration, profile) -> None:
        self.url, self.stub, self.teacher, self.registration, self.profile = url, stub, teacher, registration, profile

    async def scrape(self) -> str:
        async with httpx.AsyncClient(timeout=30) as http:
            return (await http.get(f"{self.url}/metrics")).text

    def call(self, **changes):
        message = request_for(self.profile, **changes).to_proto(self.registration.student_id)
        return self.stub.Score(message)

    async def score(self, **changes) -> list[teacher_pb2.ScoreResponse]:
        return [message async for message in self.call(**changes)]


@pytest.fixture
async def served(teacher, student_registration, student_profile):
    with served_over_http(teacher.built.service) as url:
        async with served_over_grpc(teacher.built.service) as target, grpc.aio.insecure_channel(target) as channel:
            stub = teacher_pb2_grpc.TeacherStub(channel)
            await stub.RegisterStudent(iter(student_registration.to_messages()))
            yield Served(url, stub, teacher, student_registration, student_profile)


def documented() -> dict[str, tuple[str, set[str], str]]:
    """Type, labels and meaning of every metric of the page."""
    rows = ROW.findall(PAGE.read_text())
    return {name: (kind, set(filter(None, labels.split(", "))), text) for name, kind, labels, text in rows}


def shown(text: str) -> dict[str, tuple[str, set[str], str]]:
    """The same of a scrape."""
    table = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("tokbridge_") and not family.name.endswith("_created"):
            labels = {label for sample in family.samples for label in sample.labels} - {"model_name", "le"}
            name = family.name + ("_total" if family.type == "counter" else "")
            table[name] = (family.type, labels, family.documentation)
    return table


async def test_the_documented_table_is_what_a_service_shows(served):
    await served.score()
    text = await served.scrape()
    expected = documented()
    if not sum_of_series(text, MEMORY):  # no device, no series, hence no labels
        expected[MEMORY] = (expected[MEMORY][0], set(), expected[MEMORY][2])
    assert shown(text) == expected


async def test_every_series_names_the_model(served):
    models = {s.labels.get("model_name") for s in samples(await served.scrape()) if s.name.startswith("tokbridge_")}
    assert models == {served.teacher.built.service.describe().model}


async def test_the_process_is_on_the_page(served):
    assert sum_of_series(await served.scrape(), "process_resident_memory_bytes") > 1 << 20


async def test_an_answer_moves_every_stage(served):
    before = await served.scrape()
    messages = await served.score()
    after = await served.scrape()

    def moved(series: str) -> float:
        return sum_of_series(after, series) - sum_of_series(before, series)

    rows = TargetRows.concatenate([decode_rows(message.rows) for message in messages[:-1]])
    trailer = messages[-1].trailer
    assert moved("tokbridge_requests_total") == moved('tokbridge_requests_total{outcome="ok",reason=""}') == 1
    assert moved('tokbridge_caller_requests_total{caller="anonymous",outcome="ok"}') == 1
    assert moved("tokbridge_caller_tokens_total") == trailer.prompt_tokens + trailer.content_tokens
    assert moved('tokbridge_teacher_tokens_total{kind="content"}') == trailer.content_tokens
    for stage in ("request", "prepare", "queue_wait", "device_pass", "encode"):
        assert moved(f"tokbridge_{stage}_seconds_count") == 1, stage
        assert moved(f"tokbridge_{stage}_seconds_sum") > 0, stage
    assert moved("tokbridge_batch_tokens_sum") == trailer.prompt_tokens + trailer.content_tokens
    assert moved("tokbridge_wire_bytes_total") == sum(message.ByteSize() for message in messages)
    for case, number in trailer.cases.items():
        assert moved(f'tokbridge_rows_total{{case="{case}"}}') == number, case
    assert moved("tokbridge_rows_total") == rows.num_rows
    for kind in ("unmapped", "control", "truncated"):
        mass = getattr(rows, f"residual_{kind}").sum(dtype=float)
        assert moved(f'tokbridge_residual_mass_total{{kind="{kind}"}}') == pytest.approx(mass, abs=1e-3), kind
    assert moved("tokbridge_residual_mass_total") > 0
    assert moved("tokbridge_refusals_total") == moved("tokbridge_cancellations_total") == 0
    assert sum_of_series(after, "tokbridge_students") == 1


async def test_a_json_answer_is_no_cancellation(served):
    before = await served.scrape()
    request = request_for(served.profile)
    body = {
        "student_id": served.registration.student_id,
        "messages": list(request.messages),
        "response": request.response.decode(),
        "token_ids": request.token_ids.tolist(),
    }
    async with httpx.AsyncClient(timeout=30) as http:
        answer = await http.post(f"{served.url}/v1/score", json=body)
    after = await served.scrape()
    assert answer.status_code == 200

    def moved(series: str) -> float:
        return sum_of_series(after, series) - sum_of_series(before, series)

    assert moved('tokbridge_requests_total{outcome="ok"}') == moved("tokbridge_requests_total") == 1
    assert moved("tokbridge_cancellations_total") == 0
    assert moved("tokbridge_wire_bytes_total") == len(answer.content)


async def test_refusals_are_counted_by_reason_wherever_they_arise(served):
    before = await served.scrape()
    for changes, code in (
        ({"stop_id": 0}, "stop_token_not_in_stop_set"),
        ({"mass": 0.5, "request_id": "has space"}, "invalid_request"),  # refused while it is read
    ):
        message = request_for(served.profile).to_proto(served.registration.student_id)
        for name, value in changes.items():
            setattr(message, name, value)
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(aiter(served.stub.Score(message)))
        after = await served.scrape()
        series = f'tokbridge_requests_total{{outcome="refused",reason="{code}"}}'
        assert sum_of_series(after, series) - sum_of_series(before, series) == 1, code
        series = f'tokbridge_refusals_total{{reason="{code}"}}'
        assert sum_of_series(after, series) - sum_of_series(before, series) == 1, code
    async with httpx.AsyncClient(timeout=30) as http:
        assert (await http.post(f"{served.url}/v1/students", content=b"{")).status_code == 400
    after = await served.scrape()
    series = 'tokbridge_registrations_total{outcome="refused",reason="invalid_request"}'
    before_body = after
    async with httpx.AsyncClient(timeout=30) as http:
        compressed = {"content-encoding": "gzip"}
        assert (await http.post(f"{served.url}/v1/score", content=b"x", headers=compressed)).status_code == 415
    unread = 'tokbridge_refusals_total{reason="invalid_request"}'
    assert sum_of_series(await served.scrape(), unread) - sum_of_series(before_body, unread) == 1
    assert sum_of_series(after, series) - sum_of_series(before, series) == 1


async def test_what_waits_shows_and_goes_when_it_is_cancelled(served):
    """Two requests fill the service: one runs, one waits, a third is refused; then both callers leave."""
    teacher = served.teacher
    before = await served.scrape()
    teacher.gate.open.clear()
    teacher.gate.entered.clear()
    calls = [served.call()]
    reads = [asyncio.ensure_future(anext(aiter(calls[0])))]
    assert await becomes(teacher.gate.entered.is_set)
    calls.append(served.call())
    reads.append(asyncio.ensure_future(anext(aiter(calls[1]))))
    assert await becomes(lambda: teacher.built.scheduler.state().queued_requests == 1)
    with pytest.raises(grpc.aio.AioRpcError):
        await served.score()
    full = await served.scrape()
    assert sum_of_series(full, "tokbridge_queue_requests") == 1
    assert sum_of_series(full, "tokbridge_queue_tokens") > 1
    assert sum_of_series(full, "tokbridge_running_requests") == 1
    assert sum_of_series(full, "tokbridge_admitted_requests") == 2
    for call in calls:
        call.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    teacher.gate.open.set()
    assert await becomes(lambda: teacher.held() == 0 and teacher.built.scheduler.state().running_requests == 0)
    after = await served.scrape()

    def moved(series: str) -> float:
        return sum_of_series(after, series) - sum_of_series(before, series)

    for gauge in ("queue_requests", "queue_tokens", "running_requests", "running_tokens", "admitted_requests"):
        assert sum_of_series(after, f"tokbridge_{gauge}") == 0, gauge
    assert moved('tokbridge_requests_total{outcome="refused",reason="overloaded"}') == 1
    assert moved('tokbridge_refusals_total{reason="overloaded"}') == 1
    assert moved('tokbridge_requests_total{outcome="cancelled",reason="client_gone"}') == 2
    assert moved('tokbridge_cancellations_total{reason="client_gone"}') == 2
    assert moved("tokbridge_queue_wait_seconds_count") == 2, "the one that never ran has waited, too"
    assert moved("tokbridge_request_seconds_count") == 0, "only answers have a latency"


async def test_callers_are_counted_by_the_names_of_their_keys(teacher, student_registration, student_profile):
    service = teacher.built.service
    before = service.metrics.render().decode()
    authenticator = Authenticator(two_callers(), service.metrics)
    message = request_for(student_profile).to_proto(student_registration.student_id)
    async with (
        served_over_grpc(service, authenticator=authenticator) as target,
        grpc.aio.insecure_channel(target) as channel,
    ):
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await stub.RegisterStudent(iter(student_registration.to_messages()), metadata=bearer(LARGE_KEY))
        for key in (LARGE_KEY, SMALL_KEY, SMALL_KEY):
            answer = [part async for part in stub.Score(message, metadata=bearer(key))][-1].trailer
        with pytest.raises(grpc.aio.AioRpcError):
            await anext(aiter(stub.Score(message, metadata=bearer("not-a-key-of-anybody"))))
    after = service.metrics.render().decode()

    def moved(series: str) -> float:
        return sum_of_series(after, series) - sum_of_series(before, series)

    tokens = answer.prompt_tokens + answer.content_tokens
    for name, calls in (("large", 1), ("small", 2)):
        assert moved(f'tokbridge_caller_requests_total{{caller="{name}",outcome="ok"}}') == calls
        assert moved(f'tokbridge_caller_tokens_total{{caller="{name}"}}') == calls * tokens
    assert moved("tokbridge_requests_total") == 3
    assert moved('tokbridge_authentication_failures_total{protocol="grpc"}') == 1
    assert moved("tokbridge_authentication_failures_total") == 1


def test_a_cpu_has_no_device_memory():
    assert device_memory("cpu") == {}


def test_the_memory_of_a_device_is_read_at_every_scrape(monkeypatch):
    read = {"memory_allocated": 10, "memory_reserved": 30, "mem_get_info": (60, 100)}
    for name, value in read.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value if device == "cuda:1" else None)
    metrics = ServiceMetrics("m")
    metrics.watch_device(device_memory("cuda:1"))
    shown = {s.labels["kind"]: s.value for s in samples(metrics.render().decode()) if s.name == MEMORY}
    assert shown == {"allocated": 10, "reserved": 30, "used": 40, "total": 100}
