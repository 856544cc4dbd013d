"""`tokbridge teacher bench`: its figures against what the server counts, and its arithmetic against hand-made runs."""

import json
from collections import Counter
from itertools import repeat

import numpy as np
import pytest

from support.scrapes import sum_of_series
from tokbridge.client import ClientStatistics
from tokbridge.errors import InvalidDataError, OverloadedError
from tokbridge.registration import StudentRegistration
from tokbridge.results import ScoreResult, Timings
from tokbridge.targets import TargetRows
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_cli.load_generator import LoadPlan, LoadTally, generate_load, report_of
from tokbridge_cli.sample_requests import SampleRequests, read_conversations, student_tokens
from tokbridge_cli.teacher_connection import TeacherConnection


def test_its_figures_are_those_of_the_server(call, teacher_address, cli_student_folder, cli_teacher):
    """Two runs differ by six requests, in what the command says and in what the server counts."""

    def figures(requests: int) -> tuple[dict, list[float]]:
        before = cli_teacher.service.metrics.render().decode()
        result = call(
            *("teacher", "bench", teacher_address, "--requests", str(requests), "--concurrency", "3"),
            *("--response-tokens", "20", "--student", str(cli_student_folder), "--json"),
        )
        assert result.exit_code == 0, result.output
        after = cli_teacher.service.metrics.render().decode()
        series = ('requests_total{outcome="ok"}', "rows_total", "wire_bytes_total", "caller_tokens_total")
        counted = [sum_of_series(after, f"tokbridge_{s}") - sum_of_series(before, f"tokbridge_{s}") for s in series]
        return json.loads(result.stdout), counted

    (few, few_counted), (many, many_counted) = figures(6), figures(12)

    def said(report: dict) -> list[float]:
        rows = report["rows_per_second"] * report["seconds"]
        tokens = report["teacher_tokens_per_second"] * report["seconds"]
        return [report["requests"], rows, report["bytes_per_row"] * rows, tokens]

    assert np.subtract(said(many), said(few)) == pytest.approx(np.subtract(many_counted, few_counted))
    assert said(few)[:2] == pytest.approx([6, 6 * 21])
    latency = few["latency_seconds"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= few["seconds"]
    assert (few["errors"], few["response_tokens"], few["concurrency"]) == ({}, 20, 3)


def test_the_table_names_what_fails_and_the_exit_status_says_so(call, teacher_address):
    """Six hundred bytes and a prompt are more than the teacher's context: the request to warm up is refused."""
    result = call("teacher", "bench", teacher_address, "--requests", "1", "--response-tokens", "20")
    assert result.exit_code == 0, result.output
    assert "bytes a row on the wire" in result.stdout
    assert "none" in result.stdout
    refused = call("teacher", "bench", teacher_address, "--requests", "2", "--response-tokens", "20000")
    assert refused.exception.code == "context_length_exceeded"


def test_prompts_from_a_file(call, teacher_address, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Why?"}\n\n{"messages": [{"role": "user", "content": "How?"}]}\n')
    assert read_conversations(prompts) == [[{"role": "user", "content": "Why?"}], [{"role": "user", "content": "How?"}]]
    result = call("teacher", "bench", teacher_address, "--seconds", "0.1", "--prompts", str(prompts), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["requests"] > 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"prompt": 3}', '{"messages": []}'])
def test_a_file_without_prompts_is_named(text, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidDataError):
        read_conversations(path)


def test_a_prompt_may_hold_unicode_line_separators(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert read_conversations(path) == [[{"role": "user", "content": "a\u2028b"}]]


def test_requests_are_spelled_by_the_students_tokens_and_the_seed_alone(cli_student_folder):
    prompt = [[{"role": "user", "content": "?"}]]
    for student in (
        TeacherConnection().load_student(),
        StudentRegistration.from_profile(load_tokenizer(cli_student_folder)),
    ):
        first, again, other = (
            iter(SampleRequests(student, prompt, response_tokens=30, seed=seed)) for seed in (1, 1, 2)
        )
        for _ in range(3):
            request, same, different = next(first), next(again), next(other)
            assert (len(request.token_ids), request.stop_id) == (30, student.turn_end_id)
            student.vocabulary.check_spells(request.token_ids, request.response)
            assert request.response == same.response != different.response
        text = "she sells 東京 by the sea shore"
        assert student.vocabulary.content_of(student_tokens(student, text)) == text.encode()


class ScriptedClient:
    """Answers each call after so many seconds of a clock that only it moves, or refuses it."""

    def __init__(self, script) -> None:
        self.now = 0.0
        self.script = iter(script)
        self.statistics = ClientStatistics(received_bytes=50, retries=Counter(overloaded=1))

    async def score(self, _):
        seconds = next(self.script)
        self.now += abs(seconds)
        if seconds < 0:
            raise OverloadedError("no")
        self.statistics = ClientStatistics(
            received_bytes=self.statistics.received_bytes + 300, retries=self.statistics.retries + Counter(overloaded=2)
        )
        return ScoreResult(
            cases={},
            seam="none",
            notes=(),
            content_log_prob=0.0,
            stop_log_prob=0.0,
            prompt_tokens=6,
            shared_prompt_tokens=3,
            content_tokens=4,
            scored_bytes=9,
            timings=Timings(),
            rows=TWO_ROWS,
            attempts=1,
            retries={},
        )


TWO_ROWS = TargetRows(
    first_row=0,
    cases=np.full(2, 3, np.uint8),
    flags=np.zeros(2, np.uint8),
    row_offsets=np.zeros(3, np.int64),
    cell_ids=np.zeros(0, np.int32),
    cell_log_probs=np.zeros(0, np.float32),
    residual_unmapped=np.zeros(2, np.float32),
    residual_control=np.zeros(2, np.float32),
    residual_truncated=np.zeros(2, np.float32),
    emitted_log_prob=np.full(2, np.nan, np.float32),
)


async def test_the_arithmetic_of_a_report():
    client = ScriptedClient([1.0, -0.5, 2.0, 0.5])
    report = await generate_load(client, repeat(None), LoadPlan(1, max_requests=4), clock=lambda: client.now)
    assert report.seconds == 4.0
    assert (report.requests, report.errors, report.retries) == (3, {"overloaded": 1}, {"overloaded": 6})
    assert report.requests_per_second == 3 / 4
    assert report.teacher_tokens_per_second == 30 / 4
    assert report.content_tokens_per_second == 12 / 4
    assert report.rows_per_second == 6 / 4
    assert report.bytes_per_row == 900 / 6
    assert report.shared_prompt_share == 0.5
    assert report.latency_seconds["p50"] == 1.0
    assert report.latency_seconds["p99"] == pytest.approx(1.98)


async def test_no_request_begins_after_the_time():
    client = ScriptedClient(repeat(1.0))
    report = await generate_load(client, repeat(None), LoadPlan(1, seconds=2.5), clock=lambda: client.now)
    assert (report.requests, report.seconds) == (3, 3.0)


def test_a_run_without_an_answer_has_figures_too():
    report = report_of(LoadTally(seconds=1.0, errors=Counter(overloaded=3)))
    assert (report.requests, report.bytes_per_row, report.latency_seconds["p99"]) == (0, 0.0, 0.0)
