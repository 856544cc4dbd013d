"""One training run from its configuration to the final model: puts data, actors, loop and records together."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import ray
from ray.exceptions import RayTaskError
from rich.console import Console

from tokbridge.errors import TokbridgeError
from tokbridge_trainer.actors import Actors, ray_cluster, started_actors
from tokbridge_trainer.checkpoint import RunState, check_same_run, find_checkpoint, read_state, writing_checkpoint
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.evaluation.runner import Evaluator
from tokbridge_trainer.hub import push_folder
from tokbridge_trainer.loop import TrainingLoop
from tokbridge_trainer.progress import ProgressDisplay, progress_display
from tokbridge_trainer.records import Records, open_records
from tokbridge_trainer.run_data import RunData, load_data
from tokbridge_trainer.schedule import Phase, plan_step
from tokbridge_trainer.sources import RolloutSource, SampleSource, WarmStartSource
from tokbridge_trainer.staleness import StalenessGate
from tokbridge_trainer.teacher_credentials import exposed_addresses


def run_training(config: TrainConfig, console: Console | None = None) -> Path:
    """Train, and return the folder of the final model.

    Raises:
        TokbridgeError: the configuration, the data, the teacher or a checkpoint is at fault.
    """
    try:
        return _run(config, console or Console(stderr=True))
    except RayTaskError as error:
        if isinstance(error.cause, TokbridgeError):
            raise error.cause from error
        raise


def _run(config: TrainConfig, console: Console) -> Path:
    data = load_data(config)
    checkpoint = find_checkpoint(config.resume, config.output_dir / "checkpoints")
    first_step = _steps_done(config, data, checkpoint)
    final_model = config.output_dir / "model"
    if first_step >= data.end_step and final_model.is_dir():
        console.print(f"nothing left to train; final model: {final_model}", highlight=False, soft_wrap=True)
        return final_model
    config.output_dir.mkdir(parents=True, exist_ok=True)
    (config.output_dir / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    with ExitStack() as stack:
        stack.enter_context(ray_cluster(config))
        actors = stack.enter_context(started_actors(config, data.text, checkpoint, first_step))
        show = stack.enter_context(progress_display(config.log.progress, first_step, data.end_step, console))
        _announce(config, data, actors, checkpoint, show)
        return Run(config, data, actors, show).train(first_step)


class Run:
    """A started run: the loop, and what happens between its steps."""

    def __init__(self, config: TrainConfig, data: RunData, actors: Actors, show: ProgressDisplay) -> None:
        self._config = config
        self._data = data
        self._actors = actors
        self._show = show
        self._evaluator = Evaluator(config, actors, data.evaluation_prompts, data.evaluation_responses)

    def train(self, first_step: int) -> Path:
        """Train from a step to the end, then write the final model."""
        with open_records(self._config, first_step) as records:
            loop = self._loop(first_step)
            loop.send_weights()
            if first_step == 0:
                self._evaluate(0, records)
            for finished in loop.steps():
                records.step(finished)
                self._show.step(finished.plan.step, finished.metrics)
                self._evaluate(finished.version, records)
                self._save(finished.version)
        return self._write_final_model()

    def _evaluate(self, steps_done: int, records: Records) -> None:
        if self._evaluator.is_due(steps_done, self._data.end_step):
            evaluation = self._evaluator.run()
            records.evaluation(steps_done, evaluation.metrics, evaluation.samples)
            self._show.evaluation(steps_done, evaluation.metrics)

    def _loop(self, first_step: int) -> TrainingLoop:
        config, data = self._config, self._data
        sources: dict[Phase, SampleSource] = {"on_policy": RolloutSource(config, data.prompts, self._actors.workers)}
        if data.warm_start is not None:
            per_step = config.warm_start_responses_per_step
            sources["warm_start"] = WarmStartSource(data.warm_start, per_step, self._actors.feed)
        gate = StalenessGate(
            max_lag=config.max_policy_lag,
            end_step=data.end_step,
            first_on_policy_step=config.warm_start_steps,
            version=first_step,
            next_step=first_step,
        )
        plan_of = partial(plan_step, config, on_policy_steps=data.on_policy_steps)
        return TrainingLoop(self._actors, sources, gate, plan_of)

    def _save(self, steps_done: int) -> None:
        """Write a checkpoint where one is due."""
        every, keep = self._config.save.every, self._config.save.keep
        if steps_done != self._data.end_step and not (every and steps_done % every == 0):
            return
        state = RunState(steps_done, self._config.seed, self._data.fingerprint)
        with writing_checkpoint(self._config.output_dir / "checkpoints", state, keep) as folder:
            ray.get(self._actors.learner.save.remote(folder.resolve()))

    def _write_final_model(self) -> Path:
        folder = (self._config.output_dir / "model").resolve()
        ray.get(self._actors.learner.export.remote(folder))
        if self._config.push_to_hub is not None:
            url = push_folder(folder, self._config.push_to_hub)
            self._show.event(f"pushed to {url}")
        self._show.event(f"final model: {folder}")
        return folder


def _steps_done(config: TrainConfig, data: RunData, checkpoint: Path | None) -> int:
    if checkpoint is None:
        return 0
    state = read_state(checkpoint)
    check_same_run(state, config.seed, data.fingerprint)
    return state.steps_done


def _announce(
    config: TrainConfig, data: RunData, actors: Actors, checkpoint: Path | None, show: ProgressDisplay
) -> None:
    """Say what is about to run."""
    show.event(f"teacher: {actors.teacher.model} at {', '.join(config.teacher.urls)}")
    for address in exposed_addresses(config.teacher):
        show.event(
            f"WARNING: the API key goes to {address} without encryption; write grpcs:// and give it a certificate"
        )
    show.event(f"student: {config.student.model}, {len(data.prompts.prompts)} prompts, {data.end_step} steps")
    if data.prompts.num_overlong:
        show.event(f"left out: {data.prompts.num_overlong} prompts of more than {config.max_prompt_tokens} tokens")
    for reason, count in (data.warm_start.skipped if data.warm_start else {}).items():
        show.event(f"left out of the warm start: {count} responses ({reason})")
    if checkpoint is not None:
        show.event(f"resumed from {checkpoint}")
