"""Metric writers: no step twice after a resume."""

import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tokbridge_trainer.metrics import JsonlWriter, TensorBoardWriter


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


def test_tensorboard_gets_the_numbers_and_not_the_text(tmp_path):
    writer = TensorBoardWriter(tmp_path, 0)
    writer.write(3, {"loss": 0.5, "phase": "on_policy"})
    writer.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 0.5)]
