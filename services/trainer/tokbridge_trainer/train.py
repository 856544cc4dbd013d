"""One training run from its configuration to the final model: puts data, actors, loop and records together."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ray.exceptions import RayTaskError
from rich.console import Console

from tokbridge.description import TeacherDescription
from tokbridge.errors import InvalidConfigError, TokbridgeError
from tokbridge_trainer.actors import idle_gpus, ray_cluster, started_actors
from tokbridge_trainer.checkpoint import (
    CONFIG_FILE,
    check_same_run,
    check_same_student,
    find_checkpoint,
    list_checkpoints,
    read_state,
    steps_done_at,
)
from tokbridge_trainer.checkpoint_writing import set_aside_later
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import dump_config, load_config
from tokbridge_trainer.hub import open_repository, push_folder
from tokbridge_trainer.metrics import require_dashboards
from tokbridge_trainer.progress import ProgressDisplay, progress_display
from tokbridge_trainer.restarts import LEARNER, Restarts
from tokbridge_trainer.run import Run
from tokbridge_trainer.run_data import RunData, load_data
from tokbridge_trainer.supply import LearnerLostError
from tokbridge_trainer.teachers.assignment import count_unrouted, idle_rules
from tokbridge_trainer.teachers.listing import TeacherList, configured_teachers, exposure_warnings


@dataclass(frozen=True)
class StartingPoint:
    """Where training begins, or goes on."""

    step: int
    checkpoint: Path | None
    """None: the student's own weights."""


def run_training(config: TrainConfig, console: Console | None = None) -> Path:
    """Train, push the final model where that is wanted, and return its folder.

    Raises:
        TokbridgeError: the configuration, the data, the teacher or a checkpoint is at fault, or a process of the run
            was lost too often.
        HubError: the hub does not take the model; its folder is whole.
    """
    console = console or Console(stderr=True)
    require_dashboards(config.log)
    try:
        folder = _run(config, console)
    except RayTaskError as error:
        if isinstance(error.cause, TokbridgeError):
            raise error.cause from error
        raise
    if config.push_to_hub is not None:
        console.print(f"pushed: {push_folder(folder, config.push_to_hub)}", highlight=False, soft_wrap=True)
    return folder


def _run(config: TrainConfig, console: Console) -> Path:
    data = load_data(config)
    teachers = configured_teachers(config).config
    num_unrouted = count_unrouted(teachers, data.all_prompts)
    start = _starting_point(config, data)
    if config.push_to_hub is not None:
        open_repository(config.push_to_hub)
    final_model = config.output_dir / "model"
    if start.step >= data.end_step and final_model.is_dir():
        console.print(f"nothing left to train; final model: {final_model}", highlight=False, soft_wrap=True)
        return final_model
    _open_output_dir(config)
    with ExitStack() as stack:
        stack.enter_context(ray_cluster(config))
        show = stack.enter_context(progress_display(config.log.progress, start.step, data.end_step, console))
        if gpus := idle_gpus(config):
            show.event(
                f"learner and rollout workers run on the CPU, the cluster has {gpus:g} GPUs: "
                "`ray.learner_gpus` and `ray.rollout_gpus` give them out"
            )
        for path in set_aside_later(config.checkpoints_dir, start.step):
            show.event(f"a checkpoint past the first step was set aside: {path}")
        for line in idle_rules(teachers, data.all_prompts):
            show.event(line)
        if num_unrouted:
            show.event(f"no teacher: {num_unrouted} prompts go to none; their responses will be left out")
        return _train(config, data, start, show)


def _open_output_dir(config: TrainConfig) -> None:
    """Make the folder, with the configuration in it."""
    try:
        config.output_dir.mkdir(parents=True, exist_ok=True)
        (config.output_dir / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    except OSError as error:
        raise InvalidConfigError(
            f"cannot write into {config.output_dir}: {error.strerror}", field="output_dir"
        ) from error


def _train(config: TrainConfig, data: RunData, start: StartingPoint, show: ProgressDisplay) -> Path:
    """Train to the end; where the learner is lost, all actors start again at the newest checkpoint."""
    restarts = Restarts(config.ray.max_restarts)
    while True:
        teachers = configured_teachers(config)
        try:
            with started_actors(config, teachers, data.text, start.checkpoint, start.step) as (actors, found):
                _announce_teachers(teachers, found, show)
                _announce(config, data, start, show)
                return Run(config, data, actors, restarts, show).train(start.step)
        except LearnerLostError:
            restarts.count(LEARNER)
            start = _newest(config, start)
            show.event(f"the learner was lost; training goes on after {start.step} steps")


def _starting_point(config: TrainConfig, data: RunData) -> StartingPoint:
    checkpoint = find_checkpoint(config.resume, config.checkpoints_dir)
    if checkpoint is None:
        return StartingPoint(0, None)
    state = read_state(checkpoint)
    check_same_run(state, config.seed, data.fingerprint)
    check_same_student(load_config(checkpoint / CONFIG_FILE), config)
    return StartingPoint(state.steps_done, checkpoint)


def _newest(config: TrainConfig, start: StartingPoint) -> StartingPoint:
    """The newest checkpoint that was written since `start`; later ones of other runs have been set aside then."""
    (*_, newest) = [None, *list_checkpoints(config.checkpoints_dir)]
    if newest is None or steps_done_at(newest) <= start.step:
        return start
    return StartingPoint(steps_done_at(newest), newest)


def _announce_teachers(teachers: TeacherList, found: dict[str, TeacherDescription], show: ProgressDisplay) -> None:
    """Say who teaches."""
    listed = {name: member for name, member in teachers.config.members.items() if name in found}
    for name, member in listed.items():
        label = "teacher" if len(found) == 1 else f"teacher {name}"
        show.event(f"{label}: {found[name].model} at {', '.join(member.urls)}")
        for warning in exposure_warnings(teachers, name):
            show.event(warning)


def _announce(config: TrainConfig, data: RunData, start: StartingPoint, show: ProgressDisplay) -> None:
    """Say what is about to run."""
    show.event(f"student: {config.student.model}, {len(data.prompts.prompts)} prompts, {data.end_step} steps")
    for place, prompts in (("", data.prompts), (" of the evaluation", data.evaluation_prompts)):
        if prompts and prompts.num_overlong:
            limit = config.max_prompt_tokens
            show.event(f"left out{place}: {prompts.num_overlong} prompts of more than {limit} tokens")
    for place, written in (("warm start", data.warm_start), ("evaluation", data.evaluation_responses)):
        for reason, count in (written.skipped if written else {}).items():
            show.event(f"left out of the {place}: {count} responses ({reason})")
    if start.checkpoint is not None:
        show.event(f"resumed from {start.checkpoint}")
