"""The standing of one client with one replica: handshake done, student registered, probe answered.

Any number of calls may need it at once and any of them may find it broken; the work is done once, by one task that all
of them await and that ends by itself when they give up. An instance that is new here is compared with those before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc.aio

from tokbridge.client.call_errors import error_of_call
from tokbridge.client.call_metadata import REQUEST_ID_DETAIL, new_request_id
from tokbridge.client.handshake import Handshake, Standing
from tokbridge.errors import DeadlineExceededError, RequestCancelledError, TeacherUnavailableError, TokbridgeError

Outcome = Callable[[TokbridgeError | None], None]
"""Told how each handshake ended; None: well."""


class Session:
    """Makes and remakes the standing."""

    def __init__(self, handshake: Handshake, outcome: Outcome) -> None:
        self._handshake = handshake
        self._outcome = outcome
        self._task: asyncio.Task[Standing] | None = None
        self._last: Standing | None = None
        """The last one that stood, broken or not."""
        self._forgotten = False
        self._silent = False
        self._closed = False

    @property
    def last_standing(self) -> Standing | None:
        """The last standing, which may be broken by now."""
        return self._last

    def start(self) -> asyncio.Task[Standing] | None:
        """Begin to make the standing if there is none and nobody does already; None once closed."""
        if self._closed:
            return None
        if self._task is None or (self._task.done() and self._task.exception() is not None):
            self._task = asyncio.create_task(self._establish())
            self._task.add_done_callback(_retrieve)
        return self._task

    async def ready(self, timeout_s: float) -> Standing:
        """The standing, made if there is none.

        Raises:
            TimeoutError: not within `timeout_s`; the work goes on for whoever else waits.
            RequestCancelledError: the session was closed.
            TokbridgeError: what the handshake, the registration or the probe met.
        """
        task = self.start()
        if task is not None:
            await asyncio.wait([task], timeout=timeout_s)  # leaves the task alone when this caller is cancelled
        if task is None or self._closed:
            raise RequestCancelledError("the client was closed during the call")
        if not task.done():
            raise TimeoutError
        return task.result()

    def broken(self, standing: Standing, *, forgotten: bool = False, silent: bool = False) -> bool:
        """A call on `standing` failed: ask the teacher again who it is, register again if it has `forgotten` us, and
        have it answer the probe again if it was `silent`.

        Returns:
            Whether that is news: other calls may have said so already, or it is mended by now.
        """
        if standing is not self._last:
            return False
        self._forgotten = self._forgotten or forgotten
        self._silent = self._silent or silent
        if self._task is None or not self._task.done():
            return False
        self._task = None
        return True

    async def close(self) -> None:
        """Stop work in progress; nothing is made any more."""
        self._closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _establish(self) -> Standing:
        request_id = new_request_id()
        try:
            standing = await self._handshake.make(
                request_id, self._last, forgotten=self._forgotten, silent=self._silent
            )
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure)
            if isinstance(error, DeadlineExceededError):  # ours, not the caller's: another try may find it awake
                error = TeacherUnavailableError("the teacher accepts connections but does not answer")
            raise self._failed(error, request_id) from failure
        except TokbridgeError as error:
            raise self._failed(error, request_id) from error.__cause__
        self._forgotten = self._silent = False
        self._last = standing
        self._outcome(None)
        return standing

    def _failed(self, error: TokbridgeError, request_id: str) -> TokbridgeError:
        error.details.setdefault(REQUEST_ID_DETAIL, request_id)
        error.details.setdefault("replica", self._handshake.name)
        self._outcome(error)
        return error


def _retrieve(task: asyncio.Task[Standing]) -> None:
    """Nobody may be left to ask for the exception; every waiter that is there gets it all the same."""
    if not task.cancelled():
        task.exception()
