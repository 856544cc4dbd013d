"""Threads for the work before the model: rendering, segmentation, plans, tables of students.

Waiting work is served by caller, as `FairQueue` orders it, and leaves the queue at once when its future is cancelled.
How much may wait is the business of admission. Knows callables only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tokbridge.errors import ShuttingDownError
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.fair_queue import FairQueue

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class _Work:
    """One call that waits."""

    caller: Caller
    num_tokens: int
    call: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


class FairPool:
    """A fixed number of threads that work for callers in proportion to their shares; safe from any thread."""

    def __init__(self, threads: int, name: str) -> None:
        """`name`: of the threads, for whoever looks at their stacks."""
        self._changed = threading.Condition()
        self._queue: FairQueue[_Work] = FairQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"tokbridge-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Calls that no thread has begun."""
        with self._changed:
            return len(self._queue)

    def submit(self, caller: Caller, num_tokens: int, call: Callable[[], Result]) -> Future[Result]:
        """Have `call` run when its turn comes; `num_tokens` is what it is accounted with.

        Raises:
            ShuttingDownError: the pool is closed.
        """
        work = _Work(caller, max(1, num_tokens), call)
        with self._changed:
            if self._closed:
                raise ShuttingDownError("The service is stopping.")
            self._queue.push(work)
            self._changed.notify()
        work.future.add_done_callback(lambda _: self._remove(work))
        return work.future

    def close(self) -> None:
        """Fail what waits with `ShuttingDownError` and end the threads after what they do now; returns at once."""
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for work in left:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(ShuttingDownError("The service stopped before this was begun."))

    def _remove(self, work: _Work) -> None:
        with self._changed:
            self._queue.remove(work)

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            if not work.future.set_running_or_notify_cancel():
                continue
            try:
                result = work.call()
            except BaseException as error:  # noqa: BLE001 - a future carries whatever its call raised
                work.future.set_exception(error)
            else:
                work.future.set_result(result)

    def _next(self) -> _Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._queue) > 0)
            if self._closed:
                return None
            work = next(self._queue.in_order())
            self._queue.take([work])
            return work
