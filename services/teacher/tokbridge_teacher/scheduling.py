"""The queue between prepared responses and the one worker thread that runs the model.

Callers are served in proportion to their shares; batches are taken under a token budget, responses of one prompt
together. A response above the budget runs in a lane of its own, and its pass takes turns with ordinary batches, so that
it holds up nobody for its whole length; each lane has its own queue, since what a caller gets in one takes nothing from
those who wait in the other. Keys and values are held for one pass of each lane at most. What the counters
say is computed from the containers themselves. The module knows jobs and their sizes; of the backend only `steps`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tokbridge.errors import InternalError, ShuttingDownError, TokbridgeError
from tokbridge_teacher.backends.base import Backend, BackendLostError, ScoreJob, Steps
from tokbridge_teacher.callers import ANONYMOUS, Caller
from tokbridge_teacher.fair_queue import FairQueue
from tokbridge_teacher.tickets import Ticket, select_batch
from tokbridge_teacher.turns import Lane, Turns

_log = logging.getLogger(__name__)

_STEP_S = 5.0
"""How long a stop waits for the step under way; the worker is a daemon thread, so it outlives nothing."""


@dataclass(frozen=True)
class SchedulerLimits:
    """How much runs at once."""

    batch_tokens: int
    """Tokens of an ordinary batch; a larger response goes alone, in turn with such batches."""
    passes: int = 1
    """Passes under way at once in each lane."""


@dataclass(frozen=True)
class SchedulerState:
    """A snapshot of the counters."""

    queued_requests: int
    queued_tokens: int
    running_requests: int
    running_tokens: int


@dataclass(frozen=True)
class PassReport:
    """A pass that came to its end."""

    num_requests: int
    num_tokens: int
    seconds: float
    """Of its steps, without those of other passes between them."""
    fault: TokbridgeError | None = None
    """What ended it before its time, as its callers were told."""


@dataclass
class _Pass:
    """Jobs under way together, and the steps that are left of them."""

    tickets: Sequence[Ticket]
    steps: Steps
    seconds: float = 0.0

    def report(self, fault: TokbridgeError | None) -> PassReport:
        """What it took."""
        return PassReport(len(self.tickets), sum(ticket.num_tokens for ticket in self.tickets), self.seconds, fault)


class Scheduler:
    """Runs jobs on a backend in one worker thread; all public methods are safe from any thread."""

    def __init__(
        self,
        backend: Backend,
        limits: SchedulerLimits,
        *,
        report: Callable[[PassReport], None] = lambda _: None,
        lost: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` is called from the worker at the end of every pass, `lost` when it ends because it cannot go on."""
        self._backend = backend
        self._limits = limits
        self._report = report
        self._lost = lost
        self._clock = clock
        self._changed = threading.Condition()
        self._queues: dict[Lane, FairQueue[Ticket]] = {lane: FairQueue() for lane in Lane}
        self._passes: dict[Lane, deque[_Pass]] = {lane: deque() for lane in Lane}
        self._turns = Turns()
        self._closing = False
        self._worker = threading.Thread(target=self._work, name="tokbridge-backend", daemon=True)

    def start(self) -> None:
        """Start the worker thread."""
        self._worker.start()

    def submit(self, job: ScoreJob, on_start: Callable[[], None], caller: Caller = ANONYMOUS) -> Ticket:
        """Queue an admitted job; `on_start` is called from the worker when its pass begins.

        Raises:
            ShuttingDownError: no more.
        """
        ticket = Ticket(job, on_start, caller)
        with self._changed:
            if self._closing:
                raise ShuttingDownError("The service is stopping.")
            self._queue_of(ticket).push(ticket)
            self._changed.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Take a job out of the queue; one that runs stops at its next look at `cancelled`."""
        with self._changed:
            if self._queue_of(ticket).remove(ticket):
                self._changed.notify_all()

    def state(self) -> SchedulerState:
        """What waits and what runs at this moment."""
        with self._changed:
            queued, running = list(self._queued()), list(self._running())
            return SchedulerState(
                queued_requests=len(queued),
                queued_tokens=sum(ticket.num_tokens for ticket in queued),
                running_requests=len(running),
                running_tokens=sum(ticket.num_tokens for ticket in running),
            )

    def stop(self, grace_s: float) -> None:
        """Take no more jobs, let those queued finish for `grace_s` seconds, then fail the rest and end the worker after
        the step it is in.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._has_work(), timeout=grace_s)
        self._fail_all(ShuttingDownError("The service stopped before this response was scored."))
        if self._worker.is_alive():
            self._worker.join(_STEP_S)

    def _fail_all(self, error: TokbridgeError) -> None:
        """End every job, and take no more."""
        with self._changed:
            self._closing = True
            left = [*self._queued(), *self._running()]
            for lane in Lane:
                self._queues[lane].clear()
                self._passes[lane].clear()
            self._changed.notify_all()
        for ticket in left:
            ticket.job.fail(error)

    def _queue_of(self, ticket: Ticket) -> FairQueue[Ticket]:
        return self._queues[Lane.LONG if ticket.num_tokens > self._limits.batch_tokens else Lane.ORDINARY]

    def _has_work(self) -> bool:
        return any(map(len, self._passes.values())) or any(map(len, self._queues.values()))

    def _queued(self) -> Iterator[Ticket]:
        for queue in self._queues.values():
            yield from queue

    def _running(self) -> Iterator[Ticket]:
        for passes in self._passes.values():
            for under_way in passes:
                yield from under_way.tickets

    def _work(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # noqa: BLE001 - whatever it was, without a worker nothing is ever answered
            if not isinstance(error, BackendLostError):
                _log.critical("the worker of the model failed", exc_info=error)
            self._lost()
            # Those of the pass have their error; the others may find a replica that computes.
            self._fail_all(ShuttingDownError("The teacher model computes nothing any more; the service ends."))

    def _turn(self) -> bool:
        """One step of a pass; False once all has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work() or self._closing)
            opened = self._open_passes()
            next_passes = {lane: passes[0] for lane, passes in self._passes.items() if passes}
            if not next_passes and self._closing:
                return False
        for ticket in opened:
            ticket.on_start()
        if next_passes:
            lane = self._turns.next_of(next_passes)
            self._advance(lane, next_passes[lane])
        return True

    def _open_passes(self) -> list[Ticket]:
        """Drop what nobody waits for, then begin passes in every lane that has room and work."""
        for ticket in list(self._queued()):
            if ticket.job.cancelled():
                self._queue_of(ticket).remove(ticket)
                self._changed.notify_all()
        opened: list[Ticket] = []
        for lane in Lane:
            while len(self._passes[lane]) < self._limits.passes and (batch := self._next_batch(lane)):
                steps = self._backend.steps([ticket.job for ticket in batch])
                self._queues[lane].take(batch)
                self._passes[lane].append(_Pass(batch, steps))
                opened += batch
        return opened

    def _next_batch(self, lane: Lane) -> list[Ticket]:
        waiting = list(self._queues[lane].in_order())
        return waiting[:1] if lane is Lane.LONG else select_batch(waiting, self._limits.batch_tokens)

    def _advance(self, lane: Lane, under_way: _Pass) -> None:
        """One step of the first pass in `lane`, which is then the last of it.

        Raises:
            BackendLostError: that was the last one.
        """
        started, ended, fault = self._clock(), True, None
        try:
            next(under_way.steps)
            ended = False
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - the worker must outlive any fault of a pass
            _log.exception("a pass of %d responses failed", len(under_way.tickets))
            # Without its traceback: callers may keep the error for long, and its frames hold tensors.
            typed = isinstance(error, TokbridgeError)
            fault = error.with_traceback(None) if typed else InternalError("The teacher model failed.")
        seconds = self._clock() - started
        self._turns.used(lane, seconds)
        under_way.seconds += seconds
        if ended:
            self._end(lane, under_way, fault)
        else:
            self._put_last(lane)
        if isinstance(fault, BackendLostError):
            raise fault

    def _end(self, lane: Lane, under_way: _Pass, fault: TokbridgeError | None) -> None:
        self._report(under_way.report(fault))
        if fault is not None:
            for ticket in under_way.tickets:
                ticket.job.fail(fault)
        with self._changed:
            if self._passes[lane]:  # `stop` may have cleared it
                self._passes[lane].popleft()
            self._changed.notify_all()

    def _put_last(self, lane: Lane) -> None:
        with self._changed:
            self._passes[lane].rotate(-1)
