"""The teacher client for code without an event loop: a training loop, a notebook, another trainer's hook.

    with BlockingTeacherClient(TeacherClient("teacher:50051")) as teacher:
        teacher.connect(student.registration)
        results = teacher.score_all(requests)

The loop runs in a thread of its own, so it also works where a loop is running already. Everything else is the
asynchronous client's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent import futures
from typing import Any, Self, TypeVar

from tokbridge.client.teacher_client import TeacherClient
from tokbridge.description import TeacherDescription
from tokbridge.errors import RequestCancelledError
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult

Result = TypeVar("Result")


class BlockingTeacherClient:
    """Calls of one `TeacherClient`, each returning when it is done; may be used from several threads."""

    def __init__(self, client: TeacherClient) -> None:
        """Take over a client that has not connected yet; close this one and not that."""
        self.client = client
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tokbridge-client", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._calls: set[futures.Future[Any]] = set()
        """In progress."""
        self._closing = False

    def connect(self, student: StudentRegistration) -> TeacherDescription:
        """As `TeacherClient.connect`."""
        return self._run(self.client.connect(student))

    def score(self, request: ScoreRequest) -> ScoreResult:
        """As `TeacherClient.score`."""
        return self._run(self.client.score(request))

    def score_all(self, requests: Iterable[ScoreRequest]) -> list[ScoreResult]:
        """Score responses at once, so that the teacher can batch them; results in the order of the requests.

        Raises:
            TokbridgeError: the first failure; the other calls are cancelled.
        """
        return self._run(self._score_all(list(requests)))

    def close(self) -> None:
        """End connection and thread; calls in progress end with `RequestCancelledError`. May be called again."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        asyncio.run_coroutine_threadsafe(self.client.close(), self._loop).result()
        futures.wait(tuple(self._calls))  # they end now, but not without the loop
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _score_all(self, requests: list[ScoreRequest]) -> list[ScoreResult]:
        calls = [asyncio.ensure_future(self.client.score(request)) for request in requests]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        with self._lock:
            if self._closing:
                call.close()
                raise RequestCancelledError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future.result()
