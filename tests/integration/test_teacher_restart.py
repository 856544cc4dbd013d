"""The teacher is killed while a step waits for it, and starts again on the same port: the run goes on."""

import threading
import time

import pytest

from support.runs import read_lines
from support.teacher_process import start_teacher
from support.training import make_config
from tokbridge.targets import RowCase
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_a_run_outlives_its_teacher(ray_cluster_address, model_folders, prompt_file, tmp_path):
    first = start_teacher(model_folders["teacher"], tmp_path / "first.log")
    config = make_config(
        model_folders["student"],
        output_dir=str(tmp_path / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher={"urls": [first.grpc], "timeout_s": 200},
        steps=60,
        samples_per_prompt=2,
        max_policy_lag=1,
    )
    run = threading.Thread(target=run_training, args=(config,))
    run.start()
    wait_for_steps(config, 3, run)
    first.kill()
    second = start_teacher(model_folders["teacher"], tmp_path / "second.log", grpc_port=first.grpc_port)
    try:
        run.join(240)
        assert not run.is_alive()
    finally:
        second.terminate()

    lines = read_lines(config.output_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(60))
    assert all(line["samples/scored"] == 4 and line["samples/dropped"] == 0 for line in lines)
    for line in lines:
        assert sum(line[f"rows/{case.name.lower()}"] for case in RowCase) == line["tokens/response"]
    assert sum(line.get("teacher/retries/teacher_unavailable", 0) for line in lines) >= 1


def wait_for_steps(config, count, run):
    """Until so many steps are recorded; the run must still be going on."""
    deadline = time.monotonic() + 200
    metrics = config.output_dir / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < count:
        assert run.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
