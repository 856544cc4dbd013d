"""A live run whose `teachers_file` is edited: another model takes over, a bad file changes nothing, one more joins."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from support.runs import read_lines
from support.training import make_config
from tokbridge_trainer.config_loading import dump_config

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


class LiveRun:
    """A run in a process of its own, and the lines of metrics that it has written."""

    def __init__(self, config, folder):
        self._config = config
        self._file, self._log = folder / "config.yaml", folder / "train.log"
        self._file.write_text(dump_config(config))

    @contextlib.contextmanager
    def running(self):
        command = [sys.executable, "-m", "tokbridge_cli.main", "train", str(self._file)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        try:
            yield self
        finally:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)

    @property
    def log(self):
        return self._log.read_text()

    def lines(self):
        """Whole lines only: the run is writing while this reads."""
        metrics = self._config.output_dir / "metrics.jsonl"
        if not metrics.exists():
            return []
        whole = metrics.read_text().rpartition("\n")[0]
        copy = metrics.with_name("copy.jsonl")
        copy.write_text(whole)
        return read_lines(copy)

    def wait_for(self, condition):
        """Until a step fulfils it; its line."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self.log[-3000:]
            found = next((line for line in self.lines() if condition(line)), None)
            if found is not None:
                return found
            time.sleep(0.1)
        raise AssertionError(f"it did not happen in time:\n{self.log[-2000:]}\n{self.lines()[-1:]}")


def test_teachers_come_and_go_without_a_restart(
    ray_cluster_address, teacher, other_teacher, model_folders, prompt_file, tmp_path
):
    file = tmp_path / "teachers.yaml"
    file.write_text(f"members: {{t: {{urls: ['{teacher.grpc}']}}}}")
    config = make_config(
        model_folders["student"],
        output_dir=str(tmp_path / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher=None,
        teachers_file=str(file),
        steps=100_000,
        max_policy_lag=1,
        ray={"address": ray_cluster_address, "threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5},
    )
    old, new = teacher.facts["model"], other_teacher.facts["model"]
    with LiveRun(config, tmp_path).running() as run:
        run.wait_for(lambda line: line["teachers/t/model"] == old)
        file.write_text(f"members: {{t: {{urls: ['{other_teacher.grpc}']}}}}")
        changed = run.wait_for(lambda line: line["teachers/t/model"] == new)
        file.write_text("members: {t: {urls: []}}")
        refused = run.wait_for(lambda line: line["teachers/refused_lists"])
        both = f"t: {{urls: ['{other_teacher.grpc}']}}, u: {{urls: ['{teacher.grpc}'], weight: 2}}"
        file.write_text(f"members: {{{both}}}")
        mixed = run.wait_for(lambda line: line.get("mixture/rows"))
    lines = run.lines()
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert all(line["samples/scored"] == 2 and line["samples/dropped"] == 0 for line in lines)
    assert changed["teachers/t/vocabulary"] != lines[0]["teachers/t/vocabulary"]
    assert sum(line["teachers/changes"] for line in lines) == 2
    (first, second, third) = [line["teachers/events"] for line in lines if "teachers/events" in line]
    assert first.startswith("teacher t changes from ")
    assert second.startswith("the list of teachers stays as it was")
    assert third.startswith("teacher u joins")
    assert changed["step"] <= refused["step"] < mixed["step"]
    assert mixed["teachers/t/loss"] + mixed["teachers/u/loss"] == pytest.approx(mixed["loss"], rel=1e-4)
    for event in (first, second, third):
        assert event in run.log
