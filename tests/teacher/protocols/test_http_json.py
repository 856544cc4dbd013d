"""Answers in JSON: whole, written off the event loop, and bounded in what they hold."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from support.gated_teacher import WAIT_S, gated_teacher
from support.requests_for import request_for
from support.served import served_over_http
from tokbridge_teacher.protocols import http_json
from tokbridge_teacher.upload_budget import UploadBudget

MEBIBYTE = 1 << 20
LONG = "six " * 750


@pytest.fixture(scope="module")
def teacher(teacher_folder):
    with gated_teacher(teacher_folder, chunk_rows=64) as teacher:
        yield teacher


@pytest.fixture
async def student_id(teacher, student_registration):
    await teacher.built.service.register(lambda: student_registration)
    return student_registration.student_id


def body(profile, student_id: str, text: str = LONG, top_k: int = 400) -> dict:
    request = request_for(profile, text, top_k=top_k)
    return {
        "student_id": student_id,
        "messages": list(request.messages),
        "response": request.response.decode(),
        "token_ids": request.token_ids.tolist(),
        "stop_id": request.stop_id,
        "top_k": top_k,
        "mass": 1.0,
    }


def becomes(condition) -> bool:
    until = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def test_an_answer_of_many_pieces_is_one_text_and_written_off_the_event_loop(
    teacher, student_id, student_profile, monkeypatch
):
    threads, write = set(), http_json.row_to_json

    def noted(rows, index):
        threads.add(threading.current_thread())
        return write(rows, index)

    monkeypatch.setattr(http_json, "row_to_json", noted)
    before = set(threading.enumerate())
    with served_over_http(teacher.built.service) as url:
        new = set(threading.enumerate()) - before
        request = body(student_profile, student_id, "six " * 100, top_k=20)
        answer = httpx.post(f"{url}/v1/score", json=request, timeout=WAIT_S)
        assert not threads & new, "the loop's thread writes no rows"
    assert [row["row"] for row in answer.json()["rows"]] == list(range(len(request["token_ids"]) + 1))
    assert answer.headers["content-length"] == str(len(answer.content))
    assert threads


def test_an_answer_above_the_limit_is_refused_as_such(teacher, student_id, student_profile, monkeypatch):
    refused = 'tokbridge_requests_total{outcome="refused",reason="limit_exceeded"}'
    before = teacher.metric(refused)
    limits = teacher.built.service.limits.model_copy(update={"max_message_bytes": 100_000})
    monkeypatch.setattr(teacher.built.service, "limits", limits)
    with served_over_http(teacher.built.service) as url:
        answer = httpx.post(f"{url}/v1/score", json=body(student_profile, student_id), timeout=WAIT_S)
        short = httpx.post(f"{url}/v1/score", json=body(student_profile, student_id, "six", 5), timeout=WAIT_S)
    assert (answer.status_code, answer.json()["details"]["name"]) == (413, "max_message_bytes")
    assert short.status_code == 200
    assert teacher.metric(refused) == before + 1
    assert teacher.held() == 0


@contextmanager
def unread(url: str, request: dict) -> Iterator[None]:
    """A caller that asks and does not read."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        slow.connect(("127.0.0.1", httpx.URL(url).port))
        content = json.dumps(request).encode()
        slow.sendall(f"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n".encode())
        slow.sendall(content)
        yield


def test_answers_that_are_not_read_are_bounded_together(teacher, student_id, student_profile):
    uploads, request = UploadBudget(12 * MEBIBYTE), body(student_profile, student_id)
    with served_over_http(teacher.built.service, uploads=uploads) as url, httpx.Client(timeout=WAIT_S) as http:
        size = len(http.post(f"{url}/v1/score", json=request).content)
        assert 6 * MEBIBYTE < size < 11 * MEBIBYTE, "two of them find no room, and no connection takes one ahead"
        with unread(url, request):
            assert becomes(lambda: uploads.held_bytes > size)
            full = http.post(f"{url}/v1/score", json=request)
            assert (full.status_code, full.json()["code"]) == (429, "overloaded")
        assert becomes(lambda: not uploads.held_bytes)


def test_a_caller_that_reads_nothing_is_cut_off(teacher, student_id, student_profile):
    uploads, request = UploadBudget(12 * MEBIBYTE), body(student_profile, student_id)
    with served_over_http(teacher.built.service, uploads=uploads, read_timeout_s=0.2) as url, unread(url, request):
        assert becomes(lambda: uploads.held_bytes > 6 * MEBIBYTE)
        assert becomes(lambda: not uploads.held_bytes)
