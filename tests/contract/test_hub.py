"""Hub ids, with the hub's own client against a stand-in: what is fetched, how often, what is said where it is not."""

from pathlib import Path

import pytest

from support.hub_client import run_at_hub
from support.stand_in_hub import Repository, StandInHub, stand_in_hub

FETCH = """
import sys
from tokbridge.errors import TokbridgeError
from tokbridge.hub import local_folder
try:
    print(local_folder(sys.argv[1], weights="weights" in sys.argv, code="code" in sys.argv))
except TokbridgeError as error:
    print(error.message)
    sys.exit(2)
"""
DESCRIPTION = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
OTHERS = ["README.md", "modeling_own.py", "pytorch_model.bin", "consolidated.safetensors", "tf_model.h5"]


@pytest.fixture
def hub():
    with stand_in_hub() as hub:
        yield hub


def files(*names, content=""):
    """Each with a content of its own: the cache keeps equal ones once."""
    return {name: f"{name} {content}".encode() for name in names}


def repository(hub: StandInHub, name: str, *names: str, gated: bool = False) -> str:
    hub.repositories[name] = Repository(gated=gated)
    return hub.repositories[name].commit(files(*names))


def fetch(hub, home, source, *what, **variables):
    ended = run_at_hub(hub, home, "-c", FETCH, source, *what, **variables)
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.strip()


def test_only_what_is_wanted_is_fetched_once_and_then_no_network_is_needed(hub, tmp_path):
    repository(hub, "org/model", *DESCRIPTION, *SHARDS, *OTHERS)
    status, folder = fetch(hub, tmp_path, "org/model", "weights")
    assert status == 0
    assert sorted(path.name for path in Path(folder).iterdir()) == sorted(DESCRIPTION + SHARDS) == hub.fetched()
    assert fetch(hub, tmp_path, "org/model", "weights") == (0, folder)
    assert len(hub.fetched()) == len(DESCRIPTION + SHARDS)
    hub.requests.clear()
    assert fetch(hub, tmp_path, "org/model", "weights", HF_HUB_OFFLINE="1") == (0, folder)
    assert not hub.requests


def test_a_tokenizer_is_fetched_without_the_weights_and_the_cache_is_known_to_lack_them(hub, tmp_path):
    repository(hub, "org/model", *DESCRIPTION, "model.safetensors")
    assert fetch(hub, tmp_path, "org/model")[0] == 0
    assert hub.fetched() == DESCRIPTION
    status, message = fetch(hub, tmp_path, "org/model", "weights", HF_HUB_OFFLINE="1")
    assert status == 2
    assert "start once with a network" in message


def test_code_is_fetched_only_where_it_is_asked_for(hub, tmp_path):
    repository(hub, "org/model", *DESCRIPTION, "modeling_own.py")
    fetch(hub, tmp_path, "org/model", "code")
    assert "modeling_own.py" in hub.fetched()


def test_a_revision_is_what_follows_the_at_sign(hub, tmp_path):
    held = hub.repositories["org/model"] = Repository()
    first = held.commit(files("config.json", content="old"))
    held.commit(files("config.json", content="new"))
    held.commit(files("config.json", content="branch"), "experiment")
    for source, content in (
        ("org/model", "new"),
        (f"org/model@{first}", "old"),
        ("org/model@experiment", "branch"),
    ):
        assert (Path(fetch(hub, tmp_path, source)[1]) / "config.json").read_text() == f"config.json {content}"


@pytest.mark.parametrize(
    ("source", "variables", "said"),
    [
        ("org/gated", {"HF_TOKEN": "hf_of_somebody_else"}, "accepted its terms"),
        ("org/none", {}, "the hub has no org/none, or it is private"),
        ("org/model@v9", {}, "org/model has no such revision"),
        ("org/model", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
        ("org/model", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub does not answer"),
        ("no/such/folder", {}, "neither a folder nor a hub id"),
        ("org/model", {}, "a pickle runs the code it holds"),
    ],
)
def test_what_cannot_be_had_is_said_with_what_to_do(hub, tmp_path, source, variables, said):
    repository(hub, "org/gated", *DESCRIPTION, "model.safetensors", gated=True)
    repository(hub, "org/model", *DESCRIPTION, "pytorch_model.bin")
    status, message = fetch(hub, tmp_path, source, "weights", **variables)
    assert status == 2
    assert said in message
    assert source in message
    assert not any(name.endswith((".bin", ".safetensors")) for name in hub.fetched())


def test_a_gated_model_is_given_to_who_shows_the_token(hub, tmp_path):
    repository(hub, "org/gated", *DESCRIPTION, gated=True)
    assert fetch(hub, tmp_path, "org/gated")[0] == 0
