"""Metric writers: no step twice after a resume."""

import json
import sys
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support.training import make_config
from support.wandb_offline import logged_runs
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.loop import FinishedStep
from tokbridge_trainer.metrics import JsonlWriter, TensorBoardWriter, WandbWriter, json_lines
from tokbridge_trainer.records import open_records
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.train import run_training


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_lines_are_appended_and_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = JsonlWriter(path, 0)
    for step in range(4):
        first.write(step, {"loss": step * 1.0})
    first.close()
    resumed = JsonlWriter(path, 2)
    resumed.write(2, {"loss": 9.0})
    resumed.close()
    assert read(path) == [{"step": 0, "loss": 0.0}, {"step": 1, "loss": 1.0}, {"step": 2, "loss": 9.0}]


def test_a_line_that_a_kill_cut_short_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "loss": 1.0}\n{"step": 1, "lo')
    JsonlWriter(path, 5).close()
    assert read(path) == [{"step": 0, "loss": 1.0}]


def test_a_response_with_unicode_line_separators_stays_one_line(tmp_path):
    path, line = tmp_path / "samples.jsonl", {"response": "a\u2028b\u2029c\x85d"}
    first = JsonlWriter(path, 0)
    first.write(0, line)
    first.close()
    JsonlWriter(path, 1).close()
    assert [json.loads(text) for text in json_lines(path)] == [{"step": 0, **line}]


def test_tensorboard_gets_the_numbers_and_not_the_text(tmp_path):
    writer = TensorBoardWriter(tmp_path, 0)
    writer.write(3, {"loss": 0.5, "phase": "on_policy"})
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 0.5)]


def test_a_resumed_run_keeps_the_evaluation_before_its_first_step_in_tensorboard(tmp_path):
    config = make_config("student", output_dir=str(tmp_path), log={"tensorboard": True})
    plan = StepPlan(0, "on_policy", 0, 0.5, 1e-3)
    for first_step in (0, 2):
        with open_records(config, first_step) as records:
            for step in range(first_step, 3):
                records.step(FinishedStep(replace(plan, step=step), step + 1, {"loss": float(first_step)}, []))
                records.evaluation(step + 1, {"eval/loss": float(first_step)}, [])
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(0, 0.0), (1, 0.0), (2, 2.0)]
    assert [(e.step, e.value) for e in events.Scalars("eval/loss")] == [(1, 0.0), (2, 0.0), (3, 2.0)]


def numbers(row):
    return {name: value for name, value in row.items() if not name.startswith("_")} | {"step": row["_step"]}


@pytest.fixture
def wandb_environment(monkeypatch, tmp_path):
    """Sets variables of Weights & Biases, which reads them when its service starts; nothing of the user's is read."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    for name in ("HOME", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    yield monkeypatch.setenv
    wandb.teardown()


def test_weights_and_biases_gets_all_of_every_step_and_a_resumed_run_goes_on_with_it(tmp_path, wandb_environment):
    wandb_environment("WANDB_MODE", "offline")
    config = {"steps": 3}
    first = WandbWriter("project", tmp_path, config, 0)
    for step in range(2):
        first.write(step, {"loss": 1.5 - step, "phase": "on_policy"})
    first.close()
    resumed = WandbWriter("project", tmp_path, config, 2)
    resumed.write(2, {"loss": 9.0})
    resumed.write(2, {"eval/loss": 0.25})
    resumed.close()
    ((run_id, rows),) = logged_runs(tmp_path).items()
    assert [numbers(row) for row in rows] == [
        {"step": 0, "loss": 1.5, "phase": "on_policy"},
        {"step": 1, "loss": 0.5, "phase": "on_policy"},
        {"step": 2, "loss": 9.0, "eval/loss": 0.25},
    ]
    WandbWriter("project", tmp_path, config, 0).close()
    assert set(logged_runs(tmp_path)) > {run_id}


def test_a_run_that_weights_and_biases_does_not_begin_is_a_typed_error(tmp_path, wandb_environment):
    wandb_environment("WANDB_MODE", "online")
    wandb_environment("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(InvalidConfigError, match="does not begin a run") as refused:
        WandbWriter("project", tmp_path, {}, 0)
    assert refused.value.details["field"] == "log.wandb"


def test_a_package_that_is_missing_is_told_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InvalidConfigError, match=r"tokbridge\[wandb\]"):
        run_training(make_config("no/student", output_dir=str(tmp_path / "run"), log={"wandb": "project"}))
    assert not (tmp_path / "run").exists()
