"""A whole run with two learners gives the losses of one with a single learner."""

from __future__ import annotations

import pytest

from support.runs import losses, read_lines
from support.training import make_config
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_two_learners_give_the_losses_of_one(ray_cluster_address, teacher, model_folders, prompt_file, tmp_path):
    def run(learners: int):
        config = make_config(
            model_folders["student"],
            output_dir=str(tmp_path / str(learners)),
            prompts={"files": [str(prompt_file)]},
            teacher={"urls": [teacher.grpc], "timeout_s": 60},
            steps=4,
            ray={"learners": learners, "threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5},
        )
        model = run_training(config)
        assert (model / "model.safetensors").is_file()
        return config.output_dir

    one, two = run(1), run(2)
    assert len(losses(one)) == 4
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
    assert [line["tokens/response"] for line in read_lines(two / "metrics.jsonl")] == [
        line["tokens/response"] for line in read_lines(one / "metrics.jsonl")
    ]
