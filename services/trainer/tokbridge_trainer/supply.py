"""Has samples written and scored, whatever happens to the processes that do it.

The driver's part of a run that knows which calls are under way. A rollout worker or a feed whose process is lost is
replaced, and what was lost with it is made again: of a worker, the samples that the feed has not got; of a feed,
nothing but the scoring, since workers hand their samples out as well. Samples are known by their keys, so none is
missing and none counts twice. The loss of the learner cannot be mended here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from tokbridge_trainer.actors import ActorHandle, Actors, actor_id
from tokbridge_trainer.feed import FeedReport
from tokbridge_trainer.lost_actors import ACTOR_LOST, lost_actor
from tokbridge_trainer.orders import Job, Order
from tokbridge_trainer.restarts import FEED, ROLLOUT, Restarts
from tokbridge_trainer.rollout.tasks import RolloutReport, RolloutTask
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.sources import Work, share_out

Reference = Any
"""A Ray object reference."""


class LearnerLostError(Exception):
    """The learner's process is gone, or its group for broadcasts, and with it all steps since the last checkpoint."""


@dataclass(frozen=True)
class _Call:
    """What to do with the outcome of a call that is under way."""

    actor: str
    """Id of the one that was called."""
    done: Callable[[Any], None]
    order: Order | None
    """That fails with it; None: the run does."""


class SampleSupply:
    """Orders samples from workers and feed, and waits for them and for the learner."""

    def __init__(
        self,
        actors: Actors,
        restarts: Restarts,
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use actors that are ready.

        Args:
            announce: told what was lost, and how the teachers changed.
        """
        self._actors = actors
        self._restarts = restarts
        self._announce = announce
        self._clock = clock
        self._orders: dict[int, Order] = {}
        self._calls: dict[Reference, _Call] = {}
        self._weights_ref: Reference = None
        self._replaced: set[str] = set()
        """Ids of lost actors that have been replaced."""
        self._listen()

    def send_weights(self, weights_ref: Reference) -> None:
        """Queue weights at every worker, behind the rollouts it has already been given."""
        self._weights_ref = weights_ref
        for worker in self._actors.workers:
            self._watch(worker, worker.set_weights.remote(weights_ref))
        if self._actors.broadcasts_weights:
            self._watch(self._actors.learner, self._actors.learner.broadcast_weights.remote())

    def order(self, step: int, work: Work) -> None:
        """Start a step's samples without waiting for them."""
        order = self._orders[step] = Order(step, work, self._clock())
        self._ask_for_batch(order)
        self._share_out(order, work.tasks)

    def collect(self, step: int) -> tuple[Reference, FeedReport, dict[str, float]]:
        """Wait until all samples of an order are written and scored.

        Returns:
            A reference to the batch, what the feed reports of it, and how long it took.

        Raises:
            RayTaskError: a sample could not be written or scored; a typed error of ours is its cause.
            LearnerLostError: the learner is gone.
        """
        start = self._clock()
        order = self._orders[step]
        while not order.is_complete:
            self._settle_one()
        del self._orders[step]
        if order.failure is not None:
            raise order.failure
        assert order.report is not None, "complete without a failure"
        return order.batch_ref, order.report, {**order.metrics(), "time/batch_wait_s": self._clock() - start}

    def get(self, ref: Reference) -> Any:
        """The outcome of a call to the learner; meanwhile the others are looked after.

        Raises:
            RayTaskError: it failed.
            LearnerLostError: the learner is gone.
        """
        outcome: list[Any] = []
        self._watch(self._actors.learner, ref, outcome.append)
        while not outcome:
            self._settle_one()
        return outcome[0]

    def _watch(
        self,
        actor: ActorHandle,
        ref: Reference,
        done: Callable[[Any], None] = lambda value: None,
        order: Order | None = None,
    ) -> None:
        self._calls[ref] = _Call(actor_id(actor), done, order)

    def _settle_one(self) -> None:
        """Wait until one of the calls under way has ended, and deal with its outcome."""
        (ref,), _ = ray.wait(list(self._calls), num_returns=1, fetch_local=False)
        call = self._calls.pop(ref)
        try:
            value = ray.get(ref)
        except ACTOR_LOST as error:
            self._replace(lost_actor(error, call.actor), error)
        except RayTaskError as error:
            if call.order is None:
                raise
            call.order.failure = call.order.failure or error
        else:
            call.done(value)

    def _listen(self) -> None:
        """Announce what the present feed has to tell, while a step waits as well."""
        feed = self._actors.feed

        def told(lines: list[str]) -> None:
            for line in lines:
                self._announce(line)
            if feed is self._actors.feed:
                self._listen()

        self._watch(feed, feed.news.remote(), told)

    def _ask_for_batch(self, order: Order) -> None:
        """Of the present feed; it is given what is written already."""
        feed, work = self._actors.feed, order.work
        written = [job.samples_ref for job in order.jobs if job.samples_ref is not None]
        written += [work.samples] if work.samples else []
        report_ref, batch_ref = feed.collect.options(num_returns=2).remote(order.step, work.num_samples, *written)

        def scored(report: FeedReport) -> None:
            order.report, order.batch_ref, order.scored_s = report, batch_ref, self._clock()

        self._watch(feed, report_ref, scored, order)

    def _submit(self, order: Order, samples_ref: Reference) -> None:
        """Give the present feed samples that were written for another."""
        feed = self._actors.feed
        self._watch(feed, feed.submit_all.remote(samples_ref), order=order)

    def _share_out(self, order: Order, tasks: Sequence[RolloutTask]) -> None:
        for worker, share in enumerate(share_out(tasks, len(self._actors.workers))):
            if share:
                job = Job(worker, list(share))
                order.jobs.append(job)
                self._write(order, job)

    def _write(self, order: Order, job: Job) -> None:
        worker, feed = self._actors.workers[job.worker], self._actors.feed
        report_ref, samples_ref = worker.write_and_keep.options(num_returns=2).remote(job.tasks)

        def written(report: RolloutReport) -> None:
            job.report, job.samples_ref, order.written_s = report, samples_ref, self._clock()
            if feed is not self._actors.feed and order.report is None:
                self._submit(order, samples_ref)

        self._watch(worker, report_ref, written, order)

    def _replace(self, lost: str | None, error: RayError) -> None:
        """Put another actor in the place of a lost one; of one that is replaced already, more calls may fail."""
        if lost in self._replaced:
            return
        workers = [actor_id(worker) for worker in self._actors.workers]
        replaceable = [] if self._actors.broadcasts_weights else workers
        if lost not in (actor_id(self._actors.feed), *replaceable):
            raise LearnerLostError(str(error)) from error
        self._replaced.add(lost)
        if lost in workers:
            self._replace_worker(workers.index(lost))
        else:
            self._replace_feed()

    def _replace_worker(self, index: int) -> None:
        """The new one has the newest weights and writes what the feed has not got."""
        self._restarts.count(ROLLOUT, index)
        unfinished = [(order, job) for order in self._orders.values() for job in order.unfinished_jobs(index)]
        worker = self._actors.replace_worker(index)
        self._watch(worker, worker.load.remote())
        if self._weights_ref is not None:
            self._watch(worker, worker.set_weights.remote(self._weights_ref))
        for order, job in unfinished:
            order.take_back(job, self._arrived(order.step))
            if job.tasks:
                self._write(order, job)
        rewritten = sum(len(job.tasks) for _, job in unfinished)
        self._announce(f"rollout worker {index} was lost and started again; samples written again: {rewritten}")

    def _arrived(self, step: int) -> Collection[SampleKey] | None:
        """Keys of the samples that the feed has got: none where it is lost as well; None where it needs no more."""
        feed = self._actors.feed
        try:
            return ray.get(feed.arrived.remote(step))
        except ACTOR_LOST as error:
            self._replace(lost_actor(error, actor_id(feed)), error)
            return ()

    def _replace_feed(self) -> None:
        """The new one is given again what was written for the old one, or will be."""
        self._connect_another_feed()
        self._listen()
        for worker in self._actors.workers:
            self._watch(worker, worker.use_feed.remote(self._actors.feed))
        waiting = [order for order in self._orders.values() if order.report is None]
        for order in waiting:
            self._ask_for_batch(order)
            orphans, order.orphans = order.orphans, []
            self._share_out(order, orphans)
        self._announce(f"the feed was lost and started again; steps whose samples are scored again: {len(waiting)}")

    def _connect_another_feed(self) -> None:
        while True:
            self._restarts.count(FEED)
            try:
                ray.get(self._actors.replace_feed().connect.remote())
            except ACTOR_LOST:
                continue
            return
