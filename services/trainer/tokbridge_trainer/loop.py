"""The training loop: starts rollouts as far ahead as the staleness rule allows, and trains step after step.

It moves references between actors; batches and weights go from one actor to another through Ray's object store and
never through this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tokbridge_trainer.actors import ActorHandle
from tokbridge_trainer.learner import StepResult
from tokbridge_trainer.schedule import Phase, StepPlan
from tokbridge_trainer.sources import SampleSource
from tokbridge_trainer.staleness import StalenessGate
from tokbridge_trainer.supply import SampleSupply


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
        learner: ActorHandle,
        supply: SampleSupply,
        sources: Mapping[Phase, SampleSource],
        gate: StalenessGate,
        plan_of: Callable[[int], StepPlan],
    ) -> None:
        self._learner = learner
        self._supply = supply
        self._sources = sources
        self._gate = gate
        self._plan_of = plan_of

    def steps(self) -> Iterator[FinishedStep]:
        """Train from the gate's version to its end; yields after each step. Weights must have been sent before.

        Raises:
            RayTaskError: an actor failed; a typed error of ours is its cause.
            ActorLostError: a process was lost too often.
            LearnerLostError: the learner's process was lost.
        """
        while self._gate.version < self._gate.end_step:
            start = time.monotonic()
            step = self._gate.version
            plan = self._plan_of(step)
            self._order_samples()
            batch_ref, report, metrics = self._supply.collect(step)
            result: StepResult = self._supply.get(self._learner.train_step.remote(batch_ref, plan))
            version = self._gate.trained(step)
            self.send_weights()
            self._order_samples()
            metrics |= result.metrics
            metrics["time/step_s"] = time.monotonic() - start
            metrics["tokens_per_s"] = metrics["tokens/response"] / metrics["time/step_s"]
            facts = {"phase": plan.phase, **metrics, **report.metrics}
            yield FinishedStep(plan, version, facts, result.samples)

    def _order_samples(self) -> None:
        while self._gate.may_start():
            plan = self._plan_of(self._gate.start())
            self._supply.order(plan.step, self._sources[plan.phase].work(plan))

    def send_weights(self) -> None:
        """Send the newest weights to every worker."""
        self._supply.send_weights(self._learner.weights.remote())
