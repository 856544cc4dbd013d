"""A whole run with two learners gives the losses of one with a single learner, also when a rank is lost."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from support.ray_processes import kill_actor
from support.runs import losses, read_lines
from support.training import make_config
from tokbridge_trainer.checkpoint import list_checkpoints
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def config_of(ray_cluster_address, teacher, model_folders, prompt_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def config(name: str, learners: int) -> TrainConfig:
        return make_config(
            model_folders["student"],
            output_dir=str(folder / name),
            prompts={"files": [str(prompt_file)]},
            teacher={"urls": [teacher.grpc], "timeout_s": 60},
            steps=6,
            save={"every": 2},
            ray={"learners": learners, "threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5},
        )

    return config


@pytest.fixture(scope="module")
def one_learner(config_of) -> TrainConfig:
    config = config_of("one", 1)
    run_training(config)
    return config


def test_two_learners_give_the_losses_of_one(one_learner, config_of):
    config = config_of("two", 2)
    model = run_training(config)
    assert (model / "model.safetensors").is_file()
    assert losses(config.output_dir) == pytest.approx(losses(one_learner.output_dir), abs=1e-5)
    ours, theirs = (read_lines(run.output_dir / "metrics.jsonl") for run in (config, one_learner))
    assert [line["tokens/response"] for line in ours] == [line["tokens/response"] for line in theirs]


class KillingConsole(Console):
    """Kills an actor once, when the line of step 3 is printed and the checkpoint of step 2 is there."""

    def __init__(self, victim: str, checkpoints: Path) -> None:
        super().__init__(record=True, width=200)
        self.victim, self.checkpoints, self.killed = victim, checkpoints, False

    def print(self, *objects, **options):
        super().print(*objects, **options)
        if not self.killed and re.match(r"step 3 ", str(objects[0])):
            self._wait_for_checkpoint()
            self.killed = True
            kill_actor(self.victim)

    def _wait_for_checkpoint(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not list_checkpoints(self.checkpoints):
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.05)


@pytest.mark.parametrize("victim", ["RayTrainWorker", "LearnerGroup"])
def test_a_run_whose_rank_is_lost_goes_on_from_its_checkpoint(one_learner, config_of, victim: str):
    """Also when what is lost is the process in front of the ranks, and Ray Train's controller with it."""
    config = config_of(f"{victim}-killed", 2)
    console = KillingConsole(victim, config.checkpoints_dir)
    run_training(config, console)
    assert console.killed
    assert "the learner was lost; training goes on after 2 steps" in console.export_text()
    assert losses(config.output_dir) == pytest.approx(losses(one_learner.output_dir), abs=1e-5)


def test_one_learner_goes_on_from_the_checkpoint_of_two(one_learner, config_of):
    config = config_of("shrinking", 2)
    run_training(config.model_copy(update={"steps": 4}))
    run_training(config_of("shrinking", 1))
    assert losses(config.output_dir) == pytest.approx(losses(one_learner.output_dir), abs=1e-5)
