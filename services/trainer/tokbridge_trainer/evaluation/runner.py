"""Evaluation during training, on data that is not trained on, with the present policy.

Held-out prompts are answered by the student and scored by the teacher; held-out text of the teacher is read by the
student. Both take the same way as what is learned from, through rollout workers and feed. Rollouts always use the same
random numbers, so that two evaluations differ by the policy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from tokbridge_trainer.actors import ActorHandle
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.sample_log import sample_lines
from tokbridge_trainer.samples import EVALUATION_STEP, WRITTEN_EVALUATION_STEP, SampleKey, StepBatch
from tokbridge_trainer.sources import Work
from tokbridge_trainer.step_metrics import Metrics
from tokbridge_trainer.supply import SampleSupply
from tokbridge_trainer.written_responses import WrittenSet


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found."""

    metrics: Metrics
    """Names start with `eval/`."""
    samples: list[dict[str, str | int]]
    """Answers to the held-out prompts, for people."""


class Evaluator:
    """Evaluates the policy that learner and workers hold."""

    def __init__(
        self,
        config: TrainConfig,
        learner: ActorHandle,
        supply: SampleSupply,
        prompts: PromptSet | None,
        written: WrittenSet | None,
    ) -> None:
        self._config = config
        self._learner = learner
        self._supply = supply
        self._prompts = prompts
        self._written = written
        self._scored_written: Any = None

    def is_due(self, steps_done: int, end_step: int) -> bool:
        """Whether to evaluate after so many steps: before the first, after the last, and every so many between."""
        every = self._config.eval.every
        return bool(every) and (steps_done % every == 0 or steps_done == end_step)

    def run(self) -> Evaluation:
        """Evaluate on all that is configured."""
        rollouts, written = self._rollouts(), self._written_text()
        metrics: Metrics = self._supply.get(self._learner.evaluate.remote(rollouts, written))
        batch: StepBatch | None = None if rollouts is None else ray.get(rollouts)
        samples = sample_lines(batch, self._config.log.samples) if batch else []
        return Evaluation({f"eval/{name}": value for name, value in metrics.items()}, samples)

    def _rollouts(self) -> Any:
        """Reference to the scored answers to the held-out prompts; None without any."""
        if self._prompts is None:
            return None
        tasks = [RolloutTask(SampleKey(EVALUATION_STEP, p.index, 0), p) for p in self._prompts.prompts]
        return self._batch(EVALUATION_STEP, Work(tasks=tasks))

    def _written_text(self) -> Any:
        """The teacher's text as a scored batch; its targets change with the list of teachers only."""
        may_change = self._config.teachers_file is not None
        if self._written is not None and (may_change or self._scored_written is None):
            samples = self._written.all_samples(WRITTEN_EVALUATION_STEP)
            self._scored_written = self._batch(WRITTEN_EVALUATION_STEP, Work(samples=samples))
        return self._scored_written

    def _batch(self, step: int, work: Work) -> Any:
        self._supply.order(step, work)
        batch_ref, _, _ = self._supply.collect(step)
        return batch_ref
