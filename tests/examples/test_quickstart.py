"""The pieces of the quickstart that need neither its downloads nor its models."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.vocabulary import ByteVocabulary

FOLDER = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def merges(pieces: list[str], pairs: list[tuple[str, str]]) -> Tokenizer:
    """A byte-level tokenizer without a pre-tokenizer, over given pieces."""
    return Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=pairs))


def test_byte_level_text_is_the_librarys_table():
    text = load("build_student").byte_level_text(bytes(range(256)))
    assert len(set(text)) == 256
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for character in ("a", " ", "\n", "é", "\u00ad", "東"):
        (expected, _), *_ = level.pre_tokenize_str(character)
        assert load("build_student").byte_level_text(character.encode()) == expected


def test_embeddings_are_means_over_the_old_pieces():
    tokenizer = merges(["a", "b", "ab", "Ġ"], [("a", "b")])
    old = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0], [2.0, 4.0]])
    vocabulary = ByteVocabulary((b"ab", b" a", b"b", None, b"z"))
    new = load("build_student").mean_embeddings(vocabulary, tokenizer, old)
    mean_of_all = old.mean(0).tolist()
    assert new.tolist() == [[5.0, 5.0], [1.5, 2.0], [0.0, 1.0], mean_of_all, mean_of_all]


def tokenizer_json(build_student: ModuleType) -> str:
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(build_student._BYTE_CHARACTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    for offset, text in enumerate(build_student.CONTROL_TOKENS):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": offset % 2 == 0}
        spec["added_tokens"].append({"id": 256 + offset, "content": text, **flags})
    return json.dumps(spec)


def test_students_markers_are_control_tokens_that_end_its_turns(tmp_path: Path):
    build_student = load("build_student")
    build_student.write_tokenizer(tokenizer_json(build_student), tmp_path)
    profile = load_tokenizer(tmp_path)
    assert set(profile.control_ids) == set(build_student.CONTROL_TOKENS)
    assert profile.stop_ids == {profile.control_ids["<|EOT|>"]}
    assert profile.template is not None
    rendered = profile.template.render([{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert rendered == "<|User|>user\nhi<|EOT|>\n<|Assistant|>assistant\n"


def test_prompts_are_reproducible_and_share_no_topic(tmp_path: Path):
    prompts = load("prompts")
    train, evaluation = prompts.write_prompts(tmp_path / "a", seed=1)
    again = prompts.write_prompts(tmp_path / "b", seed=1)
    assert [path.read_text() for path in (train, evaluation)] == [path.read_text() for path in again]
    held_out = {json.loads(line)["messages"][0]["content"] for line in evaluation.read_text().splitlines()}
    trained_on = {json.loads(line)["messages"][0]["content"] for line in train.read_text().splitlines()}
    topics, templates = prompts.QUESTIONS[2]
    seen = {
        topic for topic in topics.split() for question in trained_on if question == templates[0].format(topic=topic)
    }
    kept = {topic for topic in topics.split() for question in held_out if question == templates[0].format(topic=topic)}
    assert seen
    assert kept
    assert seen | kept == set(topics.split())
    assert not seen & kept
    assert not held_out & trained_on


def test_a_package_is_checked_before_it_is_read(tmp_path: Path):
    packages = load("packages")
    folder = tmp_path / "packages" / "some-1.0"
    folder.mkdir(parents=True)
    wheel = folder / "some-1.0-py3-none-any.whl"
    inner = tmp_path / "inner.zip"
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("x.json", "{}")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some/plain.txt", "text")
        archive.writestr("some/x.json.zip", inner.read_bytes())
    right = packages.Package("some", "1.0", packages._sha256(wheel))
    assert packages.fetch_package(right, tmp_path) == wheel
    assert packages.read_member(wheel, "some/plain.txt") == b"text"
    assert packages.read_member(wheel, "some/x.json.zip") == b"{}"
    with pytest.raises(packages.FetchError, match="SHA-256"):
        packages.fetch_package(packages.Package("some", "1.0", "0" * 64), tmp_path)


def test_cache_folder_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TOKBRIDGE_CACHE", str(tmp_path))
    assert load("packages").cache_folder() == tmp_path


def test_a_process_that_ignores_the_request_to_end_is_ended(monkeypatch: pytest.MonkeyPatch):
    processes = load("processes")
    monkeypatch.setattr(processes, "STOP_TIMEOUT_S", 0.2)
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    processes.stop(process)
    assert process.poll() is not None


def test_a_teacher_that_fails_to_start_is_reported_and_gone(tmp_path: Path):
    processes = load("processes")
    block = processes.running_teacher(tmp_path / "no-such-model", tmp_path / "teacher.log")
    with pytest.raises(processes.ProcessError, match="did not get ready"), block:
        pytest.fail("the block must not run")


def test_a_failing_command_is_an_error():
    processes = load("processes")
    with pytest.raises(processes.ProcessError, match="status"):
        processes.run_tokbridge(["train", "no-such-file.yaml"], 120.0)


def test_quickstart_configuration_is_valid():
    from tokbridge_trainer.config_loading import load_config

    config = load_config(FOLDER / "train.yaml", ["seed=1"])
    assert config.warm_start_steps > 0
    assert config.eval.every > config.warm_start_steps + config.on_policy_steps(1)
