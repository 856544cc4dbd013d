"""Replicas of one teacher at addresses that stay theirs, one of which is killed, stopped and started again."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from support.teacher_process import TeacherProcess, start_teacher

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0


class SoakReplica:
    """One address, and the process that serves it now."""

    def __init__(self, name: str, model: Path, folder: Path, ports: Sequence[int], options: Sequence[str]) -> None:
        """`ports`: of HTTP and gRPC; logs go to `folder`."""
        self.name = name
        self._model = model
        self._folder = folder
        self._options = options
        self._http_port, self._grpc_port = ports
        self._process: TeacherProcess | None = None
        self.life = 0
        """Number of the process that serves, or served last."""
        self.up = False
        """False from the moment it is hit until it is ready again."""
        self.exits: Counter[str] = Counter()

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self._grpc_port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._http_port}"

    @property
    def ports(self) -> tuple[int, int]:
        """HTTP and gRPC."""
        return self._http_port, self._grpc_port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.process.pid

    @property
    def crashed(self) -> bool:
        """Whether it has ended by itself."""
        return self.up and self._process is not None and self._process.process.poll() is not None

    def start(self) -> None:
        """Serve; blocks until it is ready."""
        log = self._folder / f"{self.name}.{self.life + 1}.log"
        self._process = start_teacher(
            self._model,
            log,
            *self._options,
            http_port=self._http_port,
            grpc_port=self._grpc_port,
            timeout_s=START_TIMEOUT_S,
        )
        self.life += 1
        self.up = True

    def hit(self, number: signal.Signals) -> None:
        """SIGKILL or SIGTERM, and wait for its end; what came of it is counted in `exits`."""
        assert self._process is not None
        self.up = False
        self._process.process.send_signal(number)
        try:
            status = self._process.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.exits[f"{number.name}: not within {STOP_TIMEOUT_S:g} s"] += 1
        else:
            self.exits[f"{number.name}: status {status}"] += 1

    def end(self) -> None:
        """Leave nothing running."""
        if self._process is not None and self._process.process.poll() is None:
            self._process.kill()

    def logs(self) -> str:
        """What all its processes have logged."""
        return "".join(log.read_text() for log in sorted(self._folder.glob(f"{self.name}.*.log")))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, below those that the system hands out to outgoing connections.

    A port of that range could be taken by a client while the service that owns it is being restarted.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    with ExitStack() as held:
        for port in range(lowest - 1, 1024, -7):
            listener = held.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == count:
                return ports
    raise RuntimeError("no free port")
