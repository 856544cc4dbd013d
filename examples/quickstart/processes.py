"""The processes of the quickstart: commands that end by themselves, and a teacher service that is stopped at the end.

Every wait has a bound, and whatever happens no process outlives its block.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_PREFIX = "tokbridge teacher ready "
READY_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 30.0

# Threads that wait for one another must sleep: trainer, rollouts and teacher share few cores.
_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class ProcessError(RuntimeError):
    """A process failed, or was not ready or finished in time."""


def run_tokbridge(arguments: Sequence[str], timeout_s: float) -> None:
    """Run a `tokbridge` command, its output on this console.

    Raises:
        ProcessError: it failed or took longer than `timeout_s`.
    """
    process = subprocess.Popen(_command(arguments), env=_environment())
    try:
        status = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise ProcessError(f"tokbridge {arguments[0]} took more than {timeout_s:.0f} s") from None
    finally:
        stop(process)
    if status != 0:
        raise ProcessError(f"tokbridge {arguments[0]} failed with status {status}")


@contextmanager
def running_teacher(model: Path, log: Path) -> Iterator[str]:
    """A teacher service on free ports of this machine for the length of the block; gives its gRPC `host:port`.

    Raises:
        ProcessError: it was not ready in time.
    """
    command = _command(["teacher", "serve", str(model), "--port", "0", "--grpc-port", "0", "--dtype", "float32"])
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=_environment())
    try:
        yield _wait_until_ready(process, log)
    finally:
        stop(process)


def stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and end it if it doesn't."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def _wait_until_ready(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    deadline = time.monotonic() + READY_TIMEOUT_S
    while (left := deadline - time.monotonic()) > 0 and select.select([process.stdout], [], [], left)[0]:
        line = process.stdout.readline()
        if line.startswith(READY_PREFIX):
            return json.loads(line.removeprefix(READY_PREFIX))["grpc"]
        if not line:
            break
    raise ProcessError(f"the teacher service did not get ready; its log is {log}")


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tokbridge_cli.main", *arguments]


def _environment() -> dict[str, str]:
    return {**_ENVIRONMENT, **os.environ}
