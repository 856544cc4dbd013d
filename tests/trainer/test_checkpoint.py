"""Checkpoints: whole or absent, found, pruned, and refused when they are of another run."""

import pytest

from tokbridge.errors import CheckpointError
from tokbridge_trainer.checkpoint import (
    RunState,
    check_same_run,
    find_checkpoint,
    list_checkpoints,
    read_state,
    writing_checkpoint,
)


def write(root, steps, keep=2, content="weights"):
    with writing_checkpoint(root, RunState(steps, 7, "data"), keep) as folder:
        (folder / "model").write_text(content)


def test_written_checkpoints_are_found_in_order_and_pruned(tmp_path):
    for steps in (2, 4, 100):
        write(tmp_path, steps)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-000004", "checkpoint-000100"]
    found = find_checkpoint("auto", tmp_path)
    assert found is not None
    assert read_state(found) == RunState(100, 7, "data")
    assert find_checkpoint("never", tmp_path) is None
    assert find_checkpoint(str(found), tmp_path / "elsewhere") == found


def test_a_failure_while_writing_leaves_the_old_ones_and_no_half_one(tmp_path):
    write(tmp_path, 2)

    def fail_half_way():
        with writing_checkpoint(tmp_path, RunState(4, 7, "data"), 1) as folder:
            (folder / "model").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000002"]


def test_what_a_kill_leaves_behind_is_not_a_checkpoint(tmp_path):
    partial = tmp_path / ".checkpoint-000004.partial"
    partial.mkdir()
    (partial / "run_state.json").write_text("{}")
    (tmp_path / "checkpoint-000006").mkdir()
    assert find_checkpoint("auto", tmp_path) is None
    write(tmp_path, 4)
    assert not partial.exists()


def test_writing_the_same_step_again_replaces_it(tmp_path):
    write(tmp_path, 2, content="old")
    write(tmp_path, 2, content="new")
    assert (tmp_path / "checkpoint-000002" / "model").read_text() == "new"


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
