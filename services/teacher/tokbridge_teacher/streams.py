"""Carries what the worker thread computes for one response to the event loop that answers its caller.

A reader that is slow delays nobody else: what was computed waits here, and admission bounds how much that can be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from tokbridge.errors import DeadlineExceededError, TokbridgeError
from tokbridge_teacher.targets.marginal import ChunkResult


@dataclass(frozen=True)
class Finished:
    """The last event of a response that was scored."""

    shared_prompt_tokens: int


class ResponseStream:
    """One response's events, in order. The worker writes from its thread, one coroutine reads.

    Once closed, by the reader, by an error or by its deadline, it takes nothing more, and `cancelled` tells the worker
    to stop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        deadline_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline_s` is on `clock`; None: as long as it takes."""
        self._loop = loop
        self._deadline_s = deadline_s
        self._clock = clock
        self._events: asyncio.Queue[ChunkResult | Finished | TokbridgeError] = asyncio.Queue()
        self._closed = False
        self._abandoned = False
        self.created_at = clock()
        self.started_at: float | None = None

    def start(self) -> None:
        """Note that the model begins with this response."""
        self.started_at = self._clock()

    def emit(self, chunk: ChunkResult) -> None:
        """Pass on the targets of the next positions."""
        self._put(chunk)

    def finish(self, shared_prompt_tokens: int) -> None:
        """Pass on that all was computed."""
        self._put(Finished(shared_prompt_tokens))

    def fail(self, error: TokbridgeError) -> None:
        """Pass on an error and close."""
        self._put(error)
        self._closed = True

    def close(self) -> None:
        """Stop listening; from the reader's event loop."""
        self._closed = self._abandoned = True
        while not self._events.empty():
            self._events.get_nowait()

    def give_up(self, error: TokbridgeError) -> None:
        """Drop what waits for a reader that does not read, who finds `error` in its place; from its event loop."""
        self.close()
        self._events.put_nowait(error)

    def cancelled(self) -> bool:
        """Whether nobody listens any more; a deadline that has passed closes the stream here."""
        if not self._closed and self._deadline_s is not None and self._clock() >= self._deadline_s:
            self.fail(DeadlineExceededError("The deadline passed before all rows were computed."))
        return self._closed

    @property
    def queue_seconds(self) -> float:
        """Time between creation and start; 0 before it."""
        return 0.0 if self.started_at is None else self.started_at - self.created_at

    async def events(self) -> AsyncIterator[ChunkResult | Finished]:
        """Chunks, then `Finished`; raises what `fail` was given."""
        while True:
            event = await self._events.get()
            if isinstance(event, TokbridgeError):
                raise event
            yield event
            if isinstance(event, Finished):
                return

    def _put(self, event: ChunkResult | Finished | TokbridgeError) -> None:
        if not self._closed:
            self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: ChunkResult | Finished | TokbridgeError) -> None:
        if not self._abandoned:
            self._events.put_nowait(event)
