"""The queue between requests and the one worker thread that runs the model.

Admission is by count of requests and by tokens in flight; batches are taken under a token budget, responses of one
prompt together. What the counters say is computed from the containers themselves, so it cannot drift. The module knows
jobs and their sizes; it knows no protocol, and of the backend only `score`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokbridge.errors import InternalError, LimitExceededError, OverloadedError, ShuttingDownError, TokbridgeError
from tokbridge_teacher.backends.base import Backend, ScoreJob

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SchedulerLimits:
    """What is admitted, and how much runs at once."""

    max_requests: int
    """Waiting and running together."""
    max_tokens_in_flight: int
    """Tokens of prompts and contents, waiting and running together."""
    batch_tokens: int
    """Tokens handed to the backend at once; a larger response goes alone."""
    retry_after_s: float = 1.0
    """What a refused caller is told to wait."""


@dataclass(frozen=True)
class SchedulerState:
    """A snapshot of the counters."""

    queued_requests: int
    queued_tokens: int
    running_requests: int
    running_tokens: int


@dataclass(frozen=True, eq=False)
class Ticket:
    """A job in the scheduler; compared by identity."""

    job: ScoreJob
    on_start: Callable[[], None]

    @property
    def num_tokens(self) -> int:
        """Its size for admission and batching."""
        return self.job.num_tokens


def select_batch(queue: Sequence[Ticket], batch_tokens: int) -> list[Ticket]:
    """The next tickets to run: the oldest, those that share its prompt, then others by age, within the budget."""
    if not queue:
        return []
    first = queue[0]
    prompt = first.job.prompt_ids.tobytes()
    rest = sorted(queue[1:], key=lambda ticket: ticket.job.prompt_ids.tobytes() != prompt)
    batch, room = [first], batch_tokens - first.num_tokens
    for ticket in rest:
        if ticket.num_tokens <= room:
            batch.append(ticket)
            room -= ticket.num_tokens
    return batch


class Scheduler:
    """Runs jobs on a backend in one worker thread; all public methods are safe from any thread."""

    def __init__(self, backend: Backend, limits: SchedulerLimits) -> None:
        self._backend = backend
        self._limits = limits
        self._changed = threading.Condition()
        self._queue: list[Ticket] = []
        self._running: list[Ticket] = []
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="tokbridge-backend", daemon=True)
        self.compute_seconds = 0.0

    def start(self) -> None:
        """Start the worker thread."""
        self._worker.start()

    def submit(self, job: ScoreJob, on_start: Callable[[], None]) -> Ticket:
        """Queue a job; `on_start` is called from the worker when its batch begins.

        Raises:
            LimitExceededError: it could never be admitted.
            OverloadedError: not now.
            ShuttingDownError: no more.
        """
        ticket = Ticket(job, on_start)
        with self._changed:
            self._admit(ticket)
            self._queue.append(ticket)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Take a job out of the queue; one that runs stops at its next look at `cancelled`."""
        with self._changed:
            if ticket in self._queue:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def state(self) -> SchedulerState:
        """What waits and what runs at this moment."""
        with self._changed:
            return SchedulerState(
                queued_requests=len(self._queue),
                queued_tokens=sum(ticket.num_tokens for ticket in self._queue),
                running_requests=len(self._running),
                running_tokens=sum(ticket.num_tokens for ticket in self._running),
            )

    def stop(self, grace_s: float) -> None:
        """Take no more jobs, let those admitted finish for `grace_s` seconds, then fail the rest."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._queue and not self._running, timeout=grace_s)
            left = [*self._queue, *self._running]
            self._queue.clear()
        for ticket in left:
            ticket.job.fail(ShuttingDownError("The service stopped before this response was scored."))
        self._worker.join(timeout=grace_s)

    def _admit(self, ticket: Ticket) -> None:
        limits = self._limits
        if self._closing:
            raise ShuttingDownError("The service is stopping.")
        if ticket.num_tokens > limits.max_tokens_in_flight:
            raise LimitExceededError(
                f"A response of {ticket.num_tokens} tokens with its prompt is more than the service takes in flight.",
                name="max_tokens_in_flight",
                value=ticket.num_tokens,
                limit=limits.max_tokens_in_flight,
            )
        admitted = [*self._queue, *self._running]
        tokens = sum(other.num_tokens for other in admitted) + ticket.num_tokens
        if len(admitted) >= limits.max_requests or tokens > limits.max_tokens_in_flight:
            raise OverloadedError(
                f"The queue is full ({len(admitted)} responses); try again.", retry_after_s=limits.retry_after_s
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                self._queue = [ticket for ticket in self._queue if not ticket.job.cancelled()]
                self._running = select_batch(self._queue, self._limits.batch_tokens)
                self._queue = [ticket for ticket in self._queue if ticket not in self._running]
            if self._running:
                self._run(self._running)
            with self._changed:
                self._running = []
                self._changed.notify_all()

    def _run(self, batch: list[Ticket]) -> None:
        started = time.monotonic()
        for ticket in batch:
            ticket.on_start()
        try:
            self._backend.score([ticket.job for ticket in batch])
        except Exception as error:  # noqa: BLE001 - the worker must outlive any fault of a batch
            _log.exception("a batch of %d responses failed", len(batch))
            fault = error if isinstance(error, TokbridgeError) else InternalError("The teacher model failed.")
            for ticket in batch:
                ticket.job.fail(fault)
        self.compute_seconds += time.monotonic() - started
