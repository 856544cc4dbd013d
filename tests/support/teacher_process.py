"""Runs `tokbridge teacher serve` as a real process on free loopback ports, for tests and benchmarks.

Ready within a bound or killed; always ended by its own pid.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

READY_PREFIX = "tokbridge teacher ready "


@dataclass
class TeacherProcess:
    """A running service."""

    process: subprocess.Popen[str]
    facts: dict[str, Any]
    """The ready line: `model`, `http`, `grpc`, `self_test`."""
    log: Path

    @property
    def http(self) -> str:
        """URL of the HTTP protocol."""
        return self.facts["http"]

    @property
    def grpc(self) -> str:
        """`host:port` of the gRPC protocol."""
        return self.facts["grpc"]

    @property
    def grpc_port(self) -> int:
        """Port of the gRPC protocol, to start another process in its place."""
        return int(self.grpc.rsplit(":", 1)[1])

    def terminate(self, timeout_s: float = 30.0) -> int:
        """Ask it to stop and wait; returns its exit status, killing it when it does not end in time."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait(10)


def start_teacher(
    model: Path | str,
    log: Path,
    *options: str,
    http_port: int = 0,
    grpc_port: int = 0,
    timeout_s: float = 120.0,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "tokbridge_cli.main"),
) -> TeacherProcess:
    """Start a service and wait until it is ready; raises with the end of its log when it is not in time."""
    command = [sys.executable, *program, "teacher", "serve", str(model)]
    command += ["--port", str(http_port), "--grpc-port", str(grpc_port), *options]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={"OMP_NUM_THREADS": "1", **os.environ, **(env or {})},
        )
    try:
        facts = _wait_until_ready(process, timeout_s)
    except BaseException:
        process.kill()
        process.wait(10)
        raise
    if facts is None:
        process.kill()
        process.wait(10)
        raise RuntimeError(f"the teacher service did not get ready:\n{log.read_text()[-4000:]}")
    return TeacherProcess(process, facts, log)


@contextmanager
def running_teacher(model: Path | str, log: Path, *options: str, **settings: Any) -> Iterator[TeacherProcess]:
    """A service for the length of a `with` block."""
    teacher = start_teacher(model, log, *options, **settings)
    try:
        yield teacher
    finally:
        if teacher.process.poll() is None:
            teacher.terminate()


def _wait_until_ready(process: subprocess.Popen[str], timeout_s: float) -> dict[str, Any] | None:
    """The facts of the ready line; None when the process ends or the time is over."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            return None
        line = process.stdout.readline()
        if not line:
            return None
        if line.startswith(READY_PREFIX):
            return json.loads(line.removeprefix(READY_PREFIX))
    return None
