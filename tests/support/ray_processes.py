"""The processes of this process's own Ray cluster, for tests that kill them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def kill_actor(class_name: str, timeout_s: float = 60.0) -> int:
    """Kill one actor of a class, once there is one, and return its pid when it is gone."""
    deadline = time.monotonic() + timeout_s
    while not (pids := actor_pids(class_name)):
        assert time.monotonic() < deadline, f"no {class_name} runs"
        time.sleep(0.01)
    os.kill(pids[0], signal.SIGKILL)
    while pids[0] in actor_pids(class_name):
        assert time.monotonic() < deadline, f"{class_name} does not end"
        time.sleep(0.001)
    return pids[0]


def actor_pids(class_name: str) -> list[int]:
    """Processes of this one's descendants that run an actor of a class, in the order they were started."""
    found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _runs(pid, class_name)]
    return sorted(pid for pid in found if os.getpid() in _ancestors(pid))


def _runs(pid: int, class_name: str) -> bool:
    """Ray names a process `ray::Class`, or `ray::Class.method` while it works."""
    title = _read(pid, "cmdline").rstrip("\0").removeprefix("ray::")
    return title.split(".")[0] == class_name


def _ancestors(pid: int) -> list[int]:
    ancestors: list[int] = []
    while pid > 1 and (stat := _read(pid, "stat")):
        pid = int(stat.rsplit(")", 1)[1].split()[1])
        ancestors.append(pid)
    return ancestors


def _read(pid: int, name: str) -> str:
    """Empty when the process has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
