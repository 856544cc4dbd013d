"""Checkpoints: whole or absent, found, pruned, and refused when they are of another run."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from support.training import make_config
from tokbridge.errors import CheckpointError
from tokbridge_trainer.checkpoint import (
    RunState,
    check_same_run,
    check_same_student,
    find_checkpoint,
    list_checkpoints,
    read_state,
)
from tokbridge_trainer.checkpoint_writing import prune_checkpoints, set_aside_later, writing_checkpoint
from tokbridge_trainer.config_sections import SaveConfig

FILES, SIZE = 8, 50_000
WRITER = f"""
import itertools, sys
from functools import partial
from pathlib import Path
from tokbridge_trainer.checkpoint import RunState
from tokbridge_trainer.checkpoint_writing import write_checkpoint
from tokbridge_trainer.config_sections import SaveConfig

def fill(step, folder):
    for part in range({FILES}):
        (folder / f"part{{part}}").write_text(str(step).zfill({SIZE}))

for step in itertools.count(int(sys.argv[2])):
    write_checkpoint(Path(sys.argv[1]), RunState(step, 7, "data"), SaveConfig(keep=2), partial(fill, step))
    print(step, flush=True)
"""


def write(root, steps, content="weights"):
    with writing_checkpoint(root, RunState(steps, 7, "data")) as folder:
        (folder / "model").write_text(content)


def names(root):
    return sorted(path.name for path in root.iterdir())


def prune(root, keep=2, max_age_hours=None, now=None):
    prune_checkpoints(root, SaveConfig(keep=keep, max_age_hours=max_age_hours), time.time() if now is None else now)


def test_written_checkpoints_are_found_in_order_and_pruned(tmp_path):
    for steps in (2, 4, 100):
        write(tmp_path, steps)
        prune(tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-000004", "checkpoint-000100"]
    found = find_checkpoint("auto", tmp_path)
    assert found is not None
    assert read_state(found) == RunState(100, 7, "data")
    assert find_checkpoint("never", tmp_path) is None
    assert find_checkpoint(str(found), tmp_path / "elsewhere") == found


def test_old_ones_go_by_age_as_well_but_never_the_newest(tmp_path):
    for steps, age_h in ((2, 30), (4, 20), (6, 10)):
        write(tmp_path, steps)
        written = 1e9 - 3600 * age_h
        os.utime(tmp_path / f"checkpoint-{steps:06d}" / "run_state.json", (written, written))
    prune(tmp_path, keep=3, max_age_hours=25, now=1e9)
    assert names(tmp_path) == ["checkpoint-000004", "checkpoint-000006"]
    prune(tmp_path, keep=3, max_age_hours=1, now=1e9)
    assert names(tmp_path) == ["checkpoint-000006"]


def test_a_failure_while_writing_leaves_the_old_ones_and_no_half_one(tmp_path):
    write(tmp_path, 2)

    def fail_half_way():
        with writing_checkpoint(tmp_path, RunState(4, 7, "data")) as folder:
            (folder / "model").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert names(tmp_path) == ["checkpoint-000002"]


def test_what_a_kill_leaves_behind_is_not_a_checkpoint(tmp_path):
    leftovers = [tmp_path / ".checkpoint-000004.partial", tmp_path / ".checkpoint-000003.removed"]
    for leftover in leftovers:
        leftover.mkdir()
        (leftover / "run_state.json").write_text("{}")
    (tmp_path / "checkpoint-000006").mkdir()
    assert find_checkpoint("auto", tmp_path) is None
    write(tmp_path, 4)
    prune(tmp_path)
    assert names(tmp_path) == ["checkpoint-000004", "checkpoint-000006"]


def test_a_kill_at_any_moment_leaves_whole_checkpoints_only(tmp_path):
    step, seen = 0, set()
    for delay_s in (0.0, 0.003, 0.007, 0.013):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(step)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(3):
            step = int(process.stdout.readline())
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        found = list_checkpoints(tmp_path)
        assert found
        for path in found:
            steps = read_state(path).steps_done
            assert path.name == f"checkpoint-{steps:06d}"
            assert {part.read_text() for part in path.glob("part*")} == {str(steps).zfill(SIZE)}
            assert len(list(path.glob("part*"))) == FILES
            seen.add(steps)
        step = max(seen) + 1
    assert step >= 12


@pytest.mark.parametrize(
    "change", [lambda root: prune(root, keep=1), lambda root: write(root, 2)], ids=["prune", "replace"]
)
def test_a_kill_while_an_old_one_is_removed_leaves_no_half_one(tmp_path, monkeypatch, change):
    write(tmp_path, 2)
    write(tmp_path, 4)

    def killed_half_way(path, ignore_errors=False):
        if path.is_dir():
            (path / "model").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed_half_way)
    with pytest.raises(KeyboardInterrupt):
        change(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "checkpoint-000004") in list_checkpoints(tmp_path)
    assert all((path / "model").exists() for path in list_checkpoints(tmp_path))


def test_writing_the_same_step_again_replaces_it(tmp_path):
    write(tmp_path, 2, content="old")
    write(tmp_path, 2, content="new")
    assert (tmp_path / "checkpoint-000002" / "model").read_text() == "new"


def test_checkpoints_past_the_start_are_set_aside(tmp_path):
    for steps in (2, 4, 6):
        write(tmp_path, steps)
    assert [path.name for path in set_aside_later(tmp_path, 2)] == [
        "checkpoint-000004.abandoned",
        "checkpoint-000006.abandoned",
    ]
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-000002"]
    write(tmp_path, 4, content="again")
    assert [path.name for path in set_aside_later(tmp_path, 0)] == [
        "checkpoint-000002.abandoned",
        "checkpoint-000004.abandoned",
    ]
    assert (tmp_path / "checkpoint-000004.abandoned" / "model").read_text() == "again"


def test_a_path_without_a_checkpoint_and_a_broken_state_are_typed_errors(tmp_path):
    with pytest.raises(CheckpointError):
        find_checkpoint(str(tmp_path), tmp_path)
    write(tmp_path, 2)
    (tmp_path / "checkpoint-000002" / "run_state.json").write_text("{")
    with pytest.raises(CheckpointError):
        read_state(tmp_path / "checkpoint-000002")


@pytest.mark.parametrize(("seed", "data"), [(8, "data"), (7, "other")])
def test_another_seed_or_other_data_is_another_run(seed, data):
    check_same_run(RunState(2, 7, "data"), 7, "data")
    with pytest.raises(CheckpointError):
        check_same_run(RunState(2, 7, "data"), seed, data)


@pytest.mark.parametrize(
    ("model", "lora", "named"),
    [("org/b", {"rank": 4}, "student.model"), ("org/a", None, "lora"), ("org/a", {"rank": 4, "alpha": 8}, "lora")],
)
def test_another_student_or_other_adapters_do_not_go_on(model, lora, named):
    saved = make_config("org/a", lora={"rank": 4})
    with pytest.raises(CheckpointError, match=named):
        check_same_student(saved, make_config(model, lora=lora))


def test_a_student_may_be_named_by_another_path(tmp_path, monkeypatch):
    (tmp_path / "student").mkdir()
    monkeypatch.chdir(tmp_path)
    check_same_student(make_config(tmp_path / "student"), make_config("student", steps=9, optimizer={"lr": 1e-4}))
