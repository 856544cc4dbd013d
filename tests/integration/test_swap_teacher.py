"""Swap the teacher for one with another tokenizer: the URL changes and nothing else."""

import pytest
from tokenizers import Tokenizer

from support.runs import read_lines
from support.training import make_config
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def with_changes(config: TrainConfig, *, url: str, steps: int) -> TrainConfig:
    teacher = config.teacher.model_copy(update={"urls": [url]})
    return config.model_copy(update={"teacher": teacher, "steps": steps})


def test_a_run_goes_on_with_another_teacher(
    ray_cluster_address, teacher, other_teacher, model_folders, prompt_file, tmp_path
):
    config = make_config(
        model_folders["student"],
        output_dir=str(tmp_path / "run"),
        prompts={"files": [str(prompt_file)]},
        samples_per_prompt=2,
    )
    run_training(with_changes(config, url=teacher.grpc, steps=2))
    run_training(with_changes(config, url=other_teacher.grpc, steps=4))

    first, second = (
        Tokenizer.from_file(str(model_folders[name] / "tokenizer.json")) for name in ("teacher", "other_teacher")
    )
    assert first.get_vocab() != second.get_vocab()
    lines = read_lines(config.output_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(line["samples/scored"] == 4 and line["loss"] > 0 for line in lines)
