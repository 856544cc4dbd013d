"""A hundred thousand hostile calls to a real process, over both protocols, and what they leave behind.

`TOKBRIDGE_FUZZ_CALLS` and `TOKBRIDGE_FUZZ_SEED` set how many and which.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import grpc
import httpx
import numpy as np
import pytest

from support.fuzzed_teacher import valid_bodies, valid_requests
from support.hostile_calls import HostileCaller
from support.hostile_http import HostileHttpCaller
from support.process_gauges import resident_bytes
from support.teacher_process import TeacherProcess, running_teacher
from support.tiny_models import TINY_TEACHER, save_tiny_model

CALLS = int(os.environ.get("TOKBRIDGE_FUZZ_CALLS", "100000"))
SEED = int(os.environ.get("TOKBRIDGE_FUZZ_SEED", "1"))
HTTP_SHARE = 0.3
CALLERS = 4
MAX_GROWTH_BYTES = 48 << 20
"""Of resident memory over the second half of the calls; caches and the allocator's arenas fill in the first."""


class Soak:
    """Callers in threads, and the memory of the service while they call."""

    def __init__(self, teacher: TeacherProcess) -> None:
        self._pid = teacher.process.pid
        self._lock = threading.Lock()
        self.done = 0
        self.failures: list[str] = []
        self.memory: list[tuple[int, int]] = []
        """Calls done and resident bytes."""

    def run(self, seed: int, num_calls: int, call: Callable[[Random], None]) -> None:
        for number in range(num_calls):
            if len(self.failures) >= 20:
                return
            try:
                call(Random(f"{seed}-{number}"))
            except (AssertionError, httpx.HTTPError) as failure:
                self.failures.append(f"seed {seed}-{number}: {failure!r}"[:3000])
            with self._lock:
                self.done += 1
                if self.done % 500 == 0:
                    self.memory.append((self.done, resident_bytes(self._pid)))
                    if self.done % 5000 == 0:
                        print(
                            f"{self.done} calls, {self.memory[-1][1] >> 20} MiB, {len(self.failures)} failures",
                            flush=True,
                        )


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_hostile_calls_leave_nothing_behind(tmp_path, student_profile, student_registration):
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "teacher")
    student, score = valid_bodies(student_profile)
    outcomes: Counter[str] = Counter()
    options = ("--max-model-len", "600", "--chunk-rows", "8", "--max-students", "4", "--log-level", "error")
    started = time.monotonic()
    with (
        running_teacher(folder, tmp_path / "log", *options, timeout_s=600) as teacher,
        httpx.Client(base_url=teacher.http, timeout=60) as http,
        grpc.insecure_channel(teacher.grpc) as channel,
    ):
        soak, callers = Soak(teacher), []
        for number in range(CALLERS):
            by_grpc = HostileCaller(
                channel, valid_requests(student_profile, student_registration), student_registration
            )
            student_id = http.post("/v1/students", json=student).json()["student_id"]
            by_http = HostileHttpCaller(http, {**score, "student_id": student_id}, student)

            def call(random: Random, by_grpc=by_grpc, by_http=by_http) -> None:
                if random.random() < 0.01:  # it keeps four students and many register
                    by_grpc.register()
                    http.post("/v1/students", json=student)
                (by_http if random.random() < HTTP_SHARE else by_grpc).call(random)

            callers.append(
                (
                    by_grpc,
                    by_http,
                    threading.Thread(target=soak.run, args=(SEED * 100 + number, CALLS // CALLERS, call)),
                )
            )
        for *_, thread in callers:
            thread.start()
        for by_grpc, by_http, thread in callers:
            thread.join()
            outcomes += by_grpc.outcomes + by_http.outcomes
        assert teacher.process.poll() is None, "it crashed"
        assert http.get("/readyz").status_code == 200
        by_grpc.register()
        for request in valid_requests(student_profile, student_registration):
            score_call = channel.unary_stream("/tokbridge.v1.Teacher/Score")
            assert list(score_call(request.SerializeToString(), timeout=60))
    calls, memory = np.array(soak.memory).T
    settled = calls > 0.5 * calls[-1]
    slope = np.polyfit(calls[settled], memory[settled], 1)[0]
    growth = slope * (calls[-1] - calls[settled][0])
    report = {
        "calls": soak.done,
        "seconds": round(time.monotonic() - started, 1),
        "resident_mb": [round(memory[settled][0] / 2**20, 1), round(memory[-1] / 2**20, 1)],
        "growth_bytes_a_call": round(float(slope), 1),
        "outcomes": dict(sorted(outcomes.items())),
        "failures": soak.failures,
    }
    print(json.dumps(report, indent=1))
    assert not soak.failures
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert growth < MAX_GROWTH_BYTES
