"""Teacher and student by hub ids, and a finished run pushed: the commands as users start them, at a stand-in hub."""

import json
import shutil

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.hub_client import error_line, run_cli_at_hub
from support.runs import read_lines
from support.stand_in_hub import stand_in_hub
from support.teacher_process import running_teacher
from support.training import make_config
from support.wandb_offline import logged_runs
from tokbridge_trainer.config_loading import dump_config

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

FETCHED = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(scope="module")
def hub(model_folders, tmp_path_factory):
    """With what repositories have beside: a pickle, and code that would leave a trace."""
    with stand_in_hub() as hub:
        for name, folder in model_folders.items():
            copy = shutil.copytree(folder, tmp_path_factory.mktemp("repository") / name)
            (copy / "pytorch_model.bin").write_bytes(b"never read")
            (copy / "modeling_own.py").write_text("raise SystemExit('never run')")
            hub.add_folder(f"org/{name}", copy)
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("hub-home")


@pytest.fixture(scope="module")
def online_teacher(hub, home, tmp_path_factory):
    """Started with an empty cache; what it fetched is noted, then the notes are begun anew."""
    hub.requests.clear()
    log = tmp_path_factory.mktemp("log") / "teacher.log"
    with running_teacher("org/teacher", log, env=hub.environment(home)) as teacher:
        fetched = hub.fetched()
        hub.requests.clear()
        yield teacher, fetched


def test_a_teacher_is_served_by_its_hub_id_without_pickles_and_code(online_teacher):
    teacher, fetched = online_teacher
    assert teacher.facts["model"] == "org/teacher"
    assert fetched == FETCHED


@pytest.mark.nightly
def test_a_hub_id_that_there_is_not_is_one_clear_line(hub, home):
    ended = run_cli_at_hub(hub, home, "teacher", "serve", "org/none", "--port", "0", "--grpc-port", "0")
    assert "the hub has no org/none, or it is private" in error_line(ended)


@pytest.mark.nightly
def test_a_teacher_fetched_once_starts_without_a_network(online_teacher, hub, home, tmp_path):
    hub.requests.clear()
    offline = hub.environment(home, HF_HUB_OFFLINE="1")
    with running_teacher("org/teacher", tmp_path / "teacher.log", env=offline) as teacher:
        assert teacher.facts["model"] == "org/teacher"
    assert not hub.requests


@pytest.mark.nightly
def test_a_pair_is_inspected_by_hub_ids_without_their_weights(hub, tmp_path):
    hub.requests.clear()
    text = tmp_path / "text"
    text.write_text("a little text")
    ended = run_cli_at_hub(hub, tmp_path / "home", "inspect", "org/teacher", "org/student", "--text", str(text))
    assert ended.returncode == 0, ended.stderr
    assert "org/student" in ended.stdout
    assert hub.fetched() == sorted(2 * [name for name in FETCHED if name != "model.safetensors"])


@pytest.fixture(scope="module")
def train(online_teacher, hub, prompt_file, tmp_path_factory):
    """Runs `tokbridge train` on the same configuration, in the same folder and with one cache."""
    folder, home = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("student-home")
    config = make_config(
        "org/student",
        output_dir=str(folder / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher={"urls": [online_teacher[0].grpc], "timeout_s": 60},
        steps=2,
        log={"wandb": "project", "tensorboard": False, "progress": False},
        push_to_hub={"repo_id": "me/distilled"},
    )
    path = folder / "config.yaml"
    path.write_text(dump_config(config))

    def train(*options, **variables):
        return run_cli_at_hub(hub, home, "train", str(path), *options, WANDB_MODE="offline", **variables)

    return config.output_dir, train


@pytest.fixture(scope="module")
def finished_run(train, hub):
    """A run whose push fails at its end."""
    folder, run = train
    hub.requests.clear()
    hub.commits_answered_with = 500
    ended = run()
    hub.commits_answered_with = 200
    return folder, ended


@pytest.mark.nightly
def test_the_student_is_fetched_once_for_all_processes_of_a_run(finished_run, hub):
    assert finished_run[1].returncode in (0, 2), finished_run[1].stderr
    assert hub.fetched() == FETCHED


@pytest.mark.nightly
def test_a_push_that_fails_leaves_the_model_and_says_how_to_push_it(finished_run):
    folder, ended = finished_run
    line = error_line(ended)
    assert f"hf upload me/distilled {folder / 'model'}" in line
    assert "HTTP 500" in line
    assert len(read_lines(folder / "metrics.jsonl")) == 2
    assert AutoModelForCausalLM.from_pretrained(folder / "model")


@pytest.mark.nightly
def test_the_same_command_again_pushes_the_finished_model(finished_run, train, hub, tmp_path):
    folder, run = train
    ended = run(HF_HUB_OFFLINE="1")
    assert "me/distilled cannot be made: HF_HUB_OFFLINE is set" in error_line(ended)
    ended = run()
    assert ended.returncode == 0, ended.stderr
    assert f"pushed: {hub.url}/me/distilled/commit/" in ended.stderr
    for name, content in hub.files("me/distilled").items():
        (tmp_path / name).write_bytes(content)
    pushed, kept = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (tmp_path, folder / "model"))
    assert all(torch.equal(pushed[name], kept[name]) for name in kept)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template
    assert str(hub.url) not in json.dumps([(tmp_path / "config.json").read_text()])
    assert "snapshots" not in (tmp_path / "config.json").read_text()
    assert yaml.safe_load((folder / "config.yaml").read_text())["student"]["model"] == "org/student"


@pytest.mark.nightly
def test_weights_and_biases_has_the_metrics_of_the_file(finished_run):
    pytest.importorskip("wandb")
    folder, _ = finished_run
    ((_, rows),) = logged_runs(folder).items()
    logged = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    written = read_lines(folder / "metrics.jsonl")
    assert [row["_step"] for row in rows] == [line.pop("step") for line in written]
    assert logged == written
