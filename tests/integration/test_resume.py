"""Kill a run, resume it: the same data in the same order, and the same losses."""

import os
import signal
import subprocess
import sys
import time

import pytest

from support.runs import losses, read_lines
from support.teacher_process import running_teacher
from support.training import make_config
from tokbridge_trainer.checkpoint import list_checkpoints
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.train import run_training

pytestmark = pytest.mark.integration

TIMEOUT_S = 120


@pytest.fixture
def teacher(model_folders, tmp_path):
    with running_teacher(model_folders["teacher"], tmp_path / "teacher.log") as teacher:
        yield teacher


def test_a_killed_run_resumes_with_the_same_losses(ray_cluster_address, teacher, model_folders, prompt_file, tmp_path):
    def config_of(name, **values):
        return make_config(
            model_folders["student"],
            output_dir=str(tmp_path / name),
            prompts={"files": [str(prompt_file)]},
            teacher={"urls": [teacher.grpc], "timeout_s": 60},
            steps=6,
            save={"every": 2, "keep": 3},
            seed=3,
            **values,
        )

    whole = config_of("whole")
    run_training(whole)
    expected = losses(whole.output_dir)
    assert len(expected) == 6

    killed = config_of("killed", ray={"address": ray_cluster_address, "threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5})
    kill_after_step(killed, 3, tmp_path)
    assert [path.name for path in list_checkpoints(killed.output_dir / "checkpoints")][0] == "checkpoint-000002"
    run_training(killed)
    lines = read_lines(killed.output_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(6))
    assert losses(killed.output_dir) == pytest.approx(expected, abs=1e-5)


def steps_recorded(run):
    """Whole lines only: the run is writing while this reads."""
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def kill_after_step(config, steps, tmp_path):
    """Run `tokbridge train` in a process of its own and kill it once so many steps are recorded."""
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    command = [sys.executable, "-m", "tokbridge_cli.main", "train", str(file)]
    with (tmp_path / "train.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while steps_recorded(config.output_dir) < steps:
            assert process.poll() is None, (tmp_path / "train.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the run did not get so far in time"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
