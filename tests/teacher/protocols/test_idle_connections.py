"""An idle HTTP connection is the caller's to close: the service could close it on a request that is under way."""

import http.client
import time

import pytest

from support.served import served_over_http
from tokbridge_teacher.protocols.http_connections import http_config
from tokbridge_teacher.protocols.http_rooms import ConnectionRoom

LONGEST_KEPT_BY_CALLERS_S = 90
"""Go's HTTP transport; load balancers of AWS and nginx keep idle connections for 60 seconds, httpx for 5."""
LONGER_THAN_UVICORN_WOULD_S = 7


async def nothing(scope, receive, send) -> None: ...


def test_idle_connections_are_kept_longer_than_callers_keep_them():
    config = http_config(nothing, room=ConnectionRoom(1), read_timeout_s=1)
    assert config.timeout_keep_alive > LONGEST_KEPT_BY_CALLERS_S


@pytest.mark.nightly
def test_a_connection_that_was_idle_for_a_while_still_answers(built_teacher):
    with served_over_http(built_teacher.service) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        for pause_s in (0, LONGER_THAN_UVICORN_WOULD_S):
            time.sleep(pause_s)
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
        connection.close()
