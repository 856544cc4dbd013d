"""Whoever holds HTTP connections: health always answers, and places come back."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from support.scrapes import sum_of_series
from support.served import served_over_http
from tokbridge_teacher.protocols.http_rooms import RESERVE, ConnectionRoom

PLACES = 4
UPLOADING = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
"""The head of a request; as long as its body does not come it is under way."""


class Caller:
    """A connection of a room without sockets."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def url(built_teacher) -> Iterator[str]:
    with served_over_http(built_teacher.service, max_connections=PLACES) as url:
        yield url


def connect(url: str, held: ExitStack, sent: bytes = b"") -> socket.socket:
    connection = held.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=20))
    connection.sendall(sent)
    return connection


def comes_true(condition) -> bool:
    for _ in range(1000):
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_connections_that_send_nothing_keep_nobody_out(url):
    with ExitStack() as held:
        idle = [connect(url, held) for _ in range(3 * PLACES)]
        for path in ("/healthz", "/readyz", "/v1/teacher"):
            assert httpx.get(f"{url}{path}").status_code == 200
        assert idle[0].recv(1) == b"", "the one that was idle for longest gave way"
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle[-1].recv(12) == b"HTTP/1.1 200"


def test_while_all_are_busy_health_answers_and_others_are_refused(url, built_teacher):
    def refusals() -> float:
        page = built_teacher.service.metrics.render().decode()
        return sum_of_series(page, 'tokbridge_refusals_total{reason="overloaded"}')

    before = refusals()
    with ExitStack() as held:
        for _ in range(PLACES):
            connect(url, held, UPLOADING)
        assert comes_true(lambda: httpx.get(f"{url}/v1/teacher").status_code == 429)
        refused = httpx.get(f"{url}/v1/teacher")
        assert (refused.json()["code"], refused.json()["details"]["name"]) == ("overloaded", "max_connections")
        assert int(refused.headers["retry-after"]) >= 1
        assert refusals() - before >= 2
        for path in ("/healthz", "/readyz"):
            assert httpx.get(f"{url}{path}").status_code == 200
    assert comes_true(lambda: httpx.get(f"{url}/v1/teacher").status_code == 200)


def test_a_connection_between_two_requests_gives_way_and_one_with_a_request_does_not(url):
    with ExitStack() as held:
        busy = connect(url, held, UPLOADING)
        used = connect(url, held, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert used.recv(12) == b"HTTP/1.1 200"
        while b"ok\n" not in used.recv(4096):
            pass
        idle = [connect(url, held) for _ in range(PLACES - 1)]
        assert used.recv(1) == b""
        busy.sendall(b"{}       ")
        assert busy.recv(12) == b"HTTP/1.1 400"
        assert idle


def test_more_busy_connections_than_the_reserve_holds_are_turned_away():
    room = ConnectionRoom(PLACES)
    callers = [Caller() for _ in range(PLACES + RESERVE + 1)]
    for caller in callers:
        room.opened(caller)
        room.began(caller)
    assert [caller for caller in callers if caller.aborted] == callers[-1:]
    late = Caller()
    for caller in callers:
        room.closed(caller)
    assert not room.is_full
    room.opened(late)
    assert not late.aborted


def test_a_connection_that_answered_twice_counts_once():
    room = ConnectionRoom(1)
    first, second = Caller(), Caller()
    room.opened(first)
    for _ in range(2):
        room.began(first)
        room.began(first)
        room.ended(first)
        room.ended(first)
    room.opened(second)
    assert first.aborted
    assert not second.aborted
