"""Kill a run, resume it: the same data in the same order, and the same losses."""

import os
import signal
import subprocess
import sys
import time

import pytest

from support.runs import losses, read_lines
from support.training import make_config
from tokbridge_trainer.checkpoint import list_checkpoints
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SHARED = {"threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5}


def test_a_killed_run_repeats_the_steps_after_its_checkpoint(
    ray_cluster_address, teacher, model_folders, prompt_file, tmp_path
):
    config = make_config(
        model_folders["student"],
        output_dir=str(tmp_path / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher={"urls": [teacher.grpc], "timeout_s": 60},
        steps=200,
        save={"every": 20},
        ray={"address": ray_cluster_address, **SHARED},
        seed=3,
    )
    kill_after_steps(config, 25, tmp_path)
    killed_at = read_lines(config.output_dir / "metrics.jsonl")[-1]["step"]
    (*_, checkpoint) = list_checkpoints(config.output_dir / "checkpoints")
    steps_done = int(checkpoint.name.split("-")[1])
    before = losses(config.output_dir)
    assert steps_done <= killed_at < 200

    run_training(config.model_copy(update={"steps": killed_at + 2}))
    assert [line["step"] for line in read_lines(config.output_dir / "metrics.jsonl")] == list(range(killed_at + 2))
    repeated = slice(steps_done, killed_at + 1)
    assert losses(config.output_dir)[repeated] == pytest.approx(before[repeated], abs=1e-5)


def kill_after_steps(config, steps, tmp_path):
    """Run `tokbridge train` in a process of its own, and kill it once so many steps are recorded."""
    file, log_path = tmp_path / "config.yaml", tmp_path / "train.log"
    file.write_text(dump_config(config))
    command = [sys.executable, "-m", "tokbridge_cli.main", "train", str(file)]
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 240
    try:
        while steps_recorded(config.output_dir) < steps:
            assert process.poll() is None, log_path.read_text()[-3000:]
            assert time.monotonic() < deadline, "the run did not get so far in time"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)


def steps_recorded(run):
    """Whole lines only: the run is writing while this reads."""
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0
