"""Exact resume: a run that is killed and goes on gives the losses of one that was not."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from support.runs import losses, read_lines
from tokbridge_trainer.checkpoint import list_checkpoints, read_state
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_ten_steps_a_kill_and_ten_more_are_twenty_steps(undisturbed, tmp_path):
    """Dropout, random row selection, shuffled data and a decaying rate: all of it has to go on where it stood."""
    reference, ray_address = undisturbed
    ray = reference.ray.model_copy(update={"address": ray_address})
    config = reference.model_copy(update={"output_dir": tmp_path / "run", "ray": ray})
    kill_at_checkpoint(config, 10, tmp_path)
    killed_at = read_lines(config.output_dir / "metrics.jsonl")[-1]["step"]
    assert killed_at < 19, "the run was over before it was killed"

    run_training(config)
    assert [line["step"] for line in read_lines(config.output_dir / "metrics.jsonl")] == list(range(20))
    assert losses(config.output_dir) == pytest.approx(losses(reference.output_dir), abs=1e-5)
    (*_, last) = list_checkpoints(config.checkpoints_dir)
    assert read_state(last).steps_done == 20


def test_the_losses_depend_on_what_is_restored(undisturbed):
    """Were the loss the same at every step, the comparison above would show nothing."""
    reference, _ = undisturbed
    values = losses(reference.output_dir)
    assert len(values) == 20
    assert sum(abs(a - b) > 1e-4 for a, b in pairwise(values)) >= 15


def kill_at_checkpoint(config, steps, tmp_path):
    """Run `tokbridge train` in a process of its own, and kill it once its checkpoint after so many steps is whole."""
    file, log_path = tmp_path / "config.yaml", tmp_path / "train.log"
    file.write_text(dump_config(config))
    command = [sys.executable, "-m", "tokbridge_cli.main", "train", str(file)]
    checkpoint = config.checkpoints_dir / f"checkpoint-{steps:06d}"
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 240
    try:
        while not checkpoint.exists():
            assert process.poll() is None, log_path.read_text()[-3000:]
            assert time.monotonic() < deadline, "the run did not get so far in time"
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
