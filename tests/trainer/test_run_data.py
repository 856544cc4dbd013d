"""The fingerprint of a run's data: whatever changes the data or its order changes it, and nothing else does."""

import dataclasses

import pytest

from support.training import make_config, make_prompt
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.run_data import data_fingerprint
from tokbridge_trainer.train import run_training
from tokbridge_trainer.written_responses import WrittenResponse, WrittenSet

WARM_START = {"steps": 2, "responses": ["w.jsonl"]}
PROMPTS = PromptSet([make_prompt([1, 2]), make_prompt([3])], 0, 0, True)
RESPONSE = WrittenResponse(make_prompt([1]), make_prompt([4, 5]).token_ids, b"x", 6)


def fingerprint(prompts=PROMPTS, responses=(RESPONSE,), **values):
    config = make_config(**{"warm_start": WARM_START, **values})
    warm_start = WrittenSet(list(responses), {}, 0) if config.warm_start else None
    return data_fingerprint(config, prompts, warm_start)


@pytest.mark.parametrize(
    "changed",
    [
        {"prompts_per_step": 3},
        {"samples_per_prompt": 2},
        {"warm_start": None},
        {"warm_start": WARM_START | {"steps": 3}},
        {"warm_start": WARM_START | {"responses_per_step": 5}},
        {"prompts": dataclasses.replace(PROMPTS, shuffle=False)},
        {"prompts": dataclasses.replace(PROMPTS, prompts=PROMPTS.prompts[:1])},
        {"prompts": dataclasses.replace(PROMPTS, prompts=PROMPTS.prompts[::-1])},
        {"prompts": dataclasses.replace(PROMPTS, prompts=[make_prompt([1]), make_prompt([2, 3])])},
        {"responses": [RESPONSE, RESPONSE]},
        {"responses": [dataclasses.replace(RESPONSE, stop_id=None)]},
        {"responses": [dataclasses.replace(RESPONSE, prompt=make_prompt([2]))]},
        {"responses": [dataclasses.replace(RESPONSE, token_ids=make_prompt([4]).token_ids)]},
    ],
)
def test_what_changes_the_data_or_its_order_changes_the_fingerprint(changed):
    assert fingerprint(**changed) != fingerprint()


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 9},
        {"save": {"every": 1}},
        {"optimizer": {"lr": 1.0}},
        {"warm_start": WARM_START | {"responses_per_step": 2}},
        {"warm_start": WARM_START | {"responses": ["moved.jsonl"]}},
    ],
)
def test_a_run_may_be_prolonged_or_its_files_moved(changed):
    assert fingerprint(**changed) == fingerprint()


def test_an_output_folder_that_cannot_be_made_is_named_before_anything_starts(student_folder, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "file").touch()
    config = make_config(
        student_folder, prompts={"files": [str(tmp_path / "prompts.jsonl")]}, output_dir=str(tmp_path / "file")
    )
    with pytest.raises(InvalidConfigError, match="cannot write into"):
        run_training(config)
