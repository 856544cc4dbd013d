"""Renders chat templates in processes of their own, since a thread that loops cannot be stopped.

A template is the operator's choice, a conversation is not: a template that is quadratic in its input, or multiplies
text, must not take the service with it. Workers bound themselves; one that gives no answer is killed and replaced.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass

from tokbridge.errors import ChatTemplateError, ShuttingDownError
from tokbridge.jinja_rendering import RenderingBrokenOffError, RenderJob
from tokbridge_teacher.prompt import render_worker

_START_TIMEOUT_S = 120.0
_SLACK_S = 5.0
"""What a worker that keeps its own deadline may take longer on a busy machine."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class RenderBounds:
    """What one rendering may take."""

    deadline_s: float
    memory_bytes: int
    """Beyond what the process takes anyway."""
    max_characters: int
    """Of the text."""


class RenderProcesses:
    """At most `processes` workers, started when they are needed; a `Renderer`, safe from several threads."""

    def __init__(self, processes: int, bounds: RenderBounds) -> None:
        self._bounds = bounds
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._left = processes
        """Workers that may still be started."""
        self._closed = False

    def __call__(self, job: RenderJob) -> str:
        """The text of a conversation; waits for a worker.

        Raises:
            ChatTemplateError: the template refuses the conversation, fails on it, or takes more than it may.
            ShuttingDownError: the service stops.
        """
        worker = self._take()
        try:
            answer = worker.render(job)
        except BaseException:
            worker.kill()
            self._put(None)
            raise
        self._put(worker)
        if "text" not in answer:
            raise ChatTemplateError(answer["refused"])
        return answer["text"]

    def warm_up(self) -> None:
        """Start a worker and wait until it can render, so that the first conversation does not."""
        self._put(self._take())

    def close(self) -> None:
        """End the workers; those that render end with their answer."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        for worker in idle:
            worker.kill()

    def _take(self) -> _Worker:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._idle or self._left)
            if self._closed:
                raise ShuttingDownError("The service is stopping.")
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
                worker.kill()
                self._left += 1
            self._left -= 1
        try:
            return _Worker(self._bounds)
        except BaseException:
            self._put(None)
            raise

    def _put(self, worker: _Worker | None) -> None:
        """Give a worker back; None: it is gone, and another may be started."""
        with self._changed:
            if worker is None:
                self._left += 1
            elif not self._closed:
                self._idle.append(worker)
            self._changed.notify()
        if worker is not None and self._closed:
            worker.kill()


class _Worker:
    """One process; used by one thread at a time."""

    def __init__(self, bounds: RenderBounds) -> None:
        limits = (bounds.deadline_s, bounds.memory_bytes, bounds.max_characters)
        self._process = subprocess.Popen(
            [sys.executable, "-m", render_worker.__name__, *map(str, limits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._timeout_s = bounds.deadline_s + _SLACK_S
        try:
            self._read(_START_TIMEOUT_S)
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process runs: it may have ended between two jobs, as when the system ran out of memory."""
        return self._process.poll() is None

    def render(self, job: RenderJob) -> dict[str, str]:
        """The worker's answer; if it does not give one, an error of the conversation, and the worker is of no more use.

        Raises:
            RenderingBrokenOffError: no answer in time, or the process ended over it.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RenderingBrokenOffError("the renderer has ended; try again") from error
        return self._read(self._timeout_s)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.communicate()

    def _read(self, timeout_s: float) -> dict[str, str]:
        """One line of the worker's."""
        assert self._process.stdout is not None
        descriptor, line = self._process.stdout.fileno(), bytearray()
        readable = select.poll()  # `select.select` fails on a descriptor above 1,023
        readable.register(descriptor, select.POLLIN)
        give_up_at = time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            if not readable.poll(1000 * max(0.0, give_up_at - time.monotonic())):
                raise RenderingBrokenOffError("the chat template does not end on the conversation")
            piece = os.read(descriptor, _READ_BYTES)
            if not piece:
                raise RenderingBrokenOffError("the chat template takes too much time or memory on the conversation")
            line += piece
        return json.loads(line)
