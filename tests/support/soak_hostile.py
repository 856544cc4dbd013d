"""Garbage for the replicas of a soak, over both protocols and below them, from threads of their own.

On the replica that is hit, a call that a stop or a kill cut short may fail in any way.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random

import grpc
import httpx

from support.api_keys import SMALL_KEY, bearer
from support.broken_messages import noise
from support.fuzzed_teacher import valid_bodies, valid_requests
from support.hostile_calls import HostileCaller
from support.hostile_http import HostileHttpCaller
from support.soak_replicas import SoakReplica
from support.soak_tally import Tally
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import TokenizerProfile

TIMEOUT_S = 150.0
"""No call may take longer, with all the others and on however busy a machine."""

_HEADS = (
    b"",
    b"GET /readyz HTTP/1.1\r\n",
    b"POST /v1/score HTTP/1.1\r\ncontent-length: 100000\r\nhost: x\r\n\r\n{",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
)
_RESET = struct.pack("ii", 1, 0)


class HostileThread(threading.Thread):
    """Calls one replica until it is told to stop; over again with new connections after each restart."""

    def __init__(
        self,
        replica: SoakReplica,
        profile: TokenizerProfile,
        registration: StudentRegistration,
        tally: Tally,
        stop: threading.Event,
        pause_s: float,
        name: str,
    ) -> None:
        """`name` is also its seed."""
        super().__init__(name=name)
        self._replica = replica
        self._profile = profile
        self._registration = registration
        self._tally = tally
        self._stop_event = stop
        self._pause_s = pause_s
        self._number = 0

    def run(self) -> None:
        while not self._over():
            if self._replica.up:
                self._call_one_life(self._replica.life)
            else:
                time.sleep(0.1)

    def _call_one_life(self, life: int) -> None:
        with ExitStack() as stack:
            headers = dict(bearer(SMALL_KEY))
            http = stack.enter_context(httpx.Client(base_url=self._replica.http, timeout=TIMEOUT_S, headers=headers))
            channel = stack.enter_context(grpc.insecure_channel(self._replica.grpc))
            student, score = valid_bodies(self._profile)
            by_grpc = HostileCaller(
                channel,
                valid_requests(self._profile, self._registration),
                self._registration,
                bearer(SMALL_KEY),
                TIMEOUT_S,
            )
            by_http = HostileHttpCaller(http, {**score, "student_id": self._registration.student_id}, student)
            while not self._over() and self._same(life):
                self._number += 1
                self._call(Random(f"{self.name} {self._number}"), by_grpc, by_http, life)
                time.sleep(self._pause_s)
            for caller in (by_grpc, by_http):
                for outcome, count in caller.outcomes.items():
                    kind, _, what = outcome.partition(": ")
                    self._tally.outcomes[f"hostile {kind}"][what] += count

    def _call(self, random: Random, by_grpc: HostileCaller, by_http: HostileHttpCaller, life: int) -> None:
        began_s = time.monotonic()
        kind = random.choices(("grpc", "http", "stranger", "socket", "register"), (55, 30, 5, 7, 3))[0]
        try:
            if kind == "grpc":
                by_grpc.call(random)
            elif kind == "http":
                by_http.call(random)
            elif kind == "stranger":
                _call_without_a_key(self._replica.http)
            elif kind == "socket":
                _send_garbage(random, self._replica.ports)
            else:
                by_grpc.register()
        except (AssertionError, httpx.HTTPError, grpc.RpcError) as failure:
            if self._same(life):
                self._tally.fail(f"{self.name} {self._number}: {failure!r}")
            self._tally.count(f"hostile {kind}", "cut short", time.monotonic() - began_s)
        else:
            if kind in ("stranger", "socket", "register"):
                self._tally.count(f"hostile {kind}", "as it should", time.monotonic() - began_s)

    def _same(self, life: int) -> bool:
        return self._replica.up and self._replica.life == life

    def _over(self) -> bool:
        return self._stop_event.is_set() or self._tally.broken


def _call_without_a_key(url: str) -> None:
    answer = httpx.get(f"{url}/v1/teacher", timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated"), answer.text


def _send_garbage(random: Random, ports: Sequence[int]) -> None:
    """Bytes that are no protocol's, or half a call; then goes away, in half of the cases by a reset."""
    try:
        with socket.create_connection(("127.0.0.1", random.choice(ports)), timeout=5) as connection:
            connection.sendall(random.choice(_HEADS) + noise(random))
            connection.settimeout(random.choice((0.01, 0.3)))
            if random.random() < 0.5:
                connection.recv(4096)
            if random.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        return  # it may hang up on us
