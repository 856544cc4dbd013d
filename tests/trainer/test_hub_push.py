"""The final model on its way to the hub, with the hub's own client against a stand-in."""

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.hub_client import run_at_hub
from support.stand_in_hub import stand_in_hub

PUSH = """
import sys
from pathlib import Path
from tokbridge.errors import HubError
from tokbridge_trainer.config_sections import PushToHubConfig
from tokbridge_trainer.hub import open_repository, push_folder
config = PushToHubConfig(repo_id="me/model")
try:
    open_repository(config)
    print("open")
    print(push_folder(Path(sys.argv[1]), config))
except HubError as error:
    print(error.message)
    sys.exit(2)
"""


@pytest.fixture
def hub():
    with stand_in_hub() as hub:
        yield hub


def push(hub, home, folder, **variables):
    ended = run_at_hub(hub, home, "-c", PUSH, str(folder), **variables)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def test_what_arrives_is_a_model_and_a_second_push_changes_nothing(hub, tmp_path, student_folder):
    status, lines = push(hub, tmp_path, student_folder)
    assert status == 0
    assert lines[-1].startswith(f"{hub.url}/me/model/commit/")
    assert hub.repositories["me/model"].visibility == "private"
    arrived = tmp_path / "arrived"
    arrived.mkdir()
    for name, content in hub.files("me/model").items():
        (arrived / name).write_bytes(content)
        assert content == (student_folder / name).read_bytes()
    assert AutoModelForCausalLM.from_pretrained(arrived, use_safetensors=True).config.model_type == "qwen3"
    assert AutoTokenizer.from_pretrained(arrived).chat_template
    assert push(hub, tmp_path, student_folder)[0] == 0
    assert len(hub.repositories["me/model"].commits) == 1


def test_a_push_that_fails_says_where_the_model_is_and_how_to_push_it_by_hand(hub, tmp_path, student_folder):
    hub.commits_answered_with = 500
    status, (opened, *message) = push(hub, tmp_path, student_folder)
    assert (status, opened) == (2, "open")
    assert f"hf upload me/model {student_folder}" in message[0]
    assert "HTTP 500" in message[0]
    assert (student_folder / "model.safetensors").is_file()
    hub.commits_answered_with = 200
    assert push(hub, tmp_path, student_folder)[0] == 0


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HF_TOKEN": "hf_of_somebody_else"}, "HTTP 401"),
        ({"HF_TOKEN": ""}, "hf auth login"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "within reach"),
    ],
)
def test_a_repository_that_cannot_be_made_is_told_before_training(hub, tmp_path, student_folder, variables, said):
    status, lines = push(hub, tmp_path, student_folder, **variables)
    assert (status, len(lines)) == (2, 1)
    assert "me/model cannot be made" in lines[0]
    assert said in lines[0]
    assert not hub.repositories
