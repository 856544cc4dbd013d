"""A run whose actors are up: the loop, and what happens between its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import ray

from tokbridge_trainer.actors import Actors
from tokbridge_trainer.checkpoint import RunState
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.evaluation.runner import Evaluator
from tokbridge_trainer.loop import FinishedStep, TrainingLoop
from tokbridge_trainer.lost_actors import ACTOR_LOST
from tokbridge_trainer.progress import ProgressDisplay
from tokbridge_trainer.records import Records, open_records
from tokbridge_trainer.restarts import Restarts
from tokbridge_trainer.run_data import RunData
from tokbridge_trainer.schedule import Phase, plan_step
from tokbridge_trainer.sources import RolloutSource, SampleSource, WarmStartSource
from tokbridge_trainer.staleness import StalenessGate
from tokbridge_trainer.supply import LearnerLostError, SampleSupply


class Run:
    """Trains from a step to the end, records, evaluates and saves."""

    def __init__(
        self, config: TrainConfig, data: RunData, actors: Actors, restarts: Restarts, show: ProgressDisplay
    ) -> None:
        self._config = config
        self._data = data
        self._learner = actors.learner
        self._restarts = restarts
        self._show = show
        self._supply = SampleSupply(actors, restarts, show.event)
        self._evaluator = Evaluator(
            config, actors.learner, self._supply, data.evaluation_prompts, data.evaluation_responses
        )
        self._checkpoint_s = 0.0

    def train(self, first_step: int) -> Path:
        """Train from a step to the end, then write the final model.

        Raises:
            LearnerLostError: the learner's process is gone.
            ActorLostError: another one was lost too often.
        """
        with open_records(self._config, first_step) as records, self._finishing_checkpoints():
            loop = self._loop(first_step)
            loop.send_weights()
            if first_step == 0:
                self._evaluate(0, records)
            for finished in loop.steps():
                self._record(finished, records)
                self._evaluate(finished.version, records)
                self._save(finished.version)
        return self._write_final_model()

    def _record(self, finished: FinishedStep, records: Records) -> None:
        """What happened since the line before is told by this one, its checkpoint included."""
        extra = {**self._restarts.metrics(), "time/checkpoint_s": self._checkpoint_s}
        self._checkpoint_s = 0.0
        finished.metrics.update(extra)
        records.step(finished)
        self._show.step(finished.plan.step, finished.metrics)

    def _evaluate(self, steps_done: int, records: Records) -> None:
        if self._evaluator.is_due(steps_done, self._data.end_step):
            evaluation = self._evaluator.run()
            records.evaluation(steps_done, evaluation.metrics, evaluation.samples)
            self._show.evaluation(steps_done, evaluation.metrics)

    def _loop(self, first_step: int) -> TrainingLoop:
        config, data = self._config, self._data
        sources: dict[Phase, SampleSource] = {"on_policy": RolloutSource(config, data.prompts)}
        if data.warm_start is not None:
            sources["warm_start"] = WarmStartSource(data.warm_start, config.warm_start_responses_per_step)
        gate = StalenessGate(
            max_lag=config.max_policy_lag,
            end_step=data.end_step,
            first_on_policy_step=config.warm_start_steps,
            version=first_step,
            next_step=first_step,
        )
        plan_of = partial(plan_step, config, on_policy_steps=data.on_policy_steps)
        return TrainingLoop(self._learner, self._supply, sources, gate, plan_of)

    def _save(self, steps_done: int) -> None:
        """Start to write a checkpoint where one is due."""
        every = self._config.save.every
        if steps_done != self._data.end_step and not (every and steps_done % every == 0):
            return
        state = RunState(steps_done, self._config.seed, self._data.fingerprint)
        root = self._config.checkpoints_dir.resolve()
        self._checkpoint_s = self._supply.get(self._learner.save.remote(root, state))

    @contextmanager
    def _finishing_checkpoints(self) -> Iterator[None]:
        """Whatever ends the block, a checkpoint that is being written is waited for before the actors are ended.

        Not of a learner that is lost: it may be there and wait for ever for others that are not.
        """
        is_lost = False
        try:
            yield
        except LearnerLostError:
            is_lost = True
            raise
        finally:
            if not is_lost:
                with suppress(*ACTOR_LOST):  # The run is over, or the export that follows says so.
                    ray.get(self._learner.finish_saving.remote())

    def _write_final_model(self) -> Path:
        folder = (self._config.output_dir / "model").resolve()
        self._supply.get(self._learner.export.remote(folder))
        self._show.event(f"final model: {folder}")
        return folder
