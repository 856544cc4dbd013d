"""The training loop: starts rollouts as far ahead as the staleness rule allows, and trains step after step.

It moves references between actors; batches and weights go from one actor to another through Ray's object store and
never through this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from tokbridge_trainer.actors import Actors
from tokbridge_trainer.feed import FeedReport
from tokbridge_trainer.learner import StepResult
from tokbridge_trainer.rollout.worker import RolloutReport
from tokbridge_trainer.schedule import Phase, StepPlan
from tokbridge_trainer.sources import SampleSource, StartedSamples
from tokbridge_trainer.staleness import StalenessGate
from tokbridge_trainer.step_metrics import Metrics


@dataclass(frozen=True)
class FinishedStep:
    """A trained step, its weights on their way to the rollout workers."""

    plan: StepPlan
    version: int
    """Policy version after the step."""
    metrics: dict[str, float | str]
    samples: list[dict[str, str | int]]


class TrainingLoop:
    """Runs steps; what is written, saved or shown between them is the caller's matter."""

    def __init__(
        self,
        actors: Actors,
        sources: Mapping[Phase, SampleSource],
        gate: StalenessGate,
        plan_of: Callable[[int], StepPlan],
    ) -> None:
        self._actors = actors
        self._sources = sources
        self._gate = gate
        self._plan_of = plan_of
        self._started: dict[int, StartedSamples] = {}
        self._weight_refs: list[Any] = []

    def steps(self) -> Iterator[FinishedStep]:
        """Train from the gate's version to its end; yields after each step. Weights must have been sent before.

        Raises:
            RayError: an actor failed; a typed error of ours is its cause.
        """
        while self._gate.version < self._gate.end_step:
            start = time.monotonic()
            step = self._gate.version
            plan = self._plan_of(step)
            self._start_samples()
            batch_ref, metrics = self._await_batch(self._started.pop(step), step)
            result: StepResult = ray.get(self._actors.learner.train_step.remote(batch_ref, plan))
            version = self._gate.trained(step)
            self.send_weights()
            self._start_samples()
            metrics |= result.metrics
            metrics["time/step_s"] = time.monotonic() - start
            metrics["tokens_per_s"] = metrics["tokens/response"] / metrics["time/step_s"]
            yield FinishedStep(plan, version, {"phase": plan.phase, **metrics}, result.samples)

    def _start_samples(self) -> None:
        while self._gate.may_start():
            step = self._gate.start()
            plan = self._plan_of(step)
            self._started[step] = self._sources[plan.phase].start(plan)

    def send_weights(self) -> None:
        """Queue the newest weights at every worker, behind the rollouts it has already been given."""
        weights_ref = self._actors.learner.weights.remote()
        self._weight_refs += [worker.set_weights.remote(weights_ref) for worker in self._actors.workers]

    def _await_batch(self, started: StartedSamples, step: int) -> tuple[Any, Metrics]:
        """Wait until all samples are written and scored, or anything fails.

        Returns:
            A reference to the batch, and how long it took: the rollouts, and the teacher beyond them.
        """
        start = time.monotonic()
        report_ref, batch_ref = self._actors.feed.collect.options(num_returns=2).remote(step, started.count)
        pending = [report_ref, *started.refs, *self._finished_weight_refs()]
        written = scored = start
        rollout_s = teacher_s = 0.0
        while pending:
            (done,), pending = ray.wait(pending, num_returns=1)
            value = ray.get(done)
            now = time.monotonic()
            if isinstance(value, RolloutReport):
                written, rollout_s = now, max(rollout_s, value.seconds)
            if isinstance(value, FeedReport):
                scored, teacher_s = now, value.seconds
        return batch_ref, {
            "time/rollout_s": rollout_s,
            "time/teacher_s": teacher_s,
            "time/teacher_wait_s": max(0.0, scored - written),
            "time/batch_wait_s": time.monotonic() - start,
        }

    def _finished_weight_refs(self) -> list[Any]:
        """Weight transfers that have ended, to see their errors; the others wait behind rollouts."""
        ready, self._weight_refs = ray.wait(
            self._weight_refs, num_returns=len(self._weight_refs), timeout=0, fetch_local=False
        )
        return ready
