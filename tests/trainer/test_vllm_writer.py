"""The vLLM writer around a made-up engine: streaming, versions, cleaning up. Needs no vLLM."""

import sys

import numpy as np
import pytest

from support.training import make_config
from tokbridge.errors import InvalidConfigError, RolloutFailedError
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.rollout.vllm_engine import FinishedOutput, chunked
from tokbridge_trainer.rollout.vllm_writer import VllmWriter
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.weights import WeightSnapshot


class MadeUpEngine:
    """Finishes the shortest response first; `script` says what each one is."""

    def __init__(self, script, versions=("0",)):
        self.script = script
        self.versions = versions
        self.running = {}
        self.aborted = []
        self.loaded = []

    def add(self, request_id, prompt_ids, sampling):
        self.running[request_id] = self.script[len(self.running)]

    @property
    def is_busy(self):
        return bool(self.running)

    def step(self):
        request_id = min(self.running, key=lambda name: len(self.running[name][0]))
        token_ids, reason = self.running.pop(request_id)
        yield FinishedOutput(request_id, token_ids, reason, self.versions)

    def abort(self, request_ids):
        self.aborted += request_ids
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def replace_weights(self, snapshot):
        self.loaded.append(snapshot.version)
        self.versions = (str(snapshot.version),)


@pytest.fixture
def config(student_folder):
    return make_config(student_folder, rollout={"backend": "vllm"}, max_response_tokens=4)


@pytest.fixture
def tasks(student_text):
    prompts = [student_text.prompt(i, [{"role": "user", "content": "hi"}], None) for i in range(3)]
    return [RolloutTask(SampleKey(0, prompt.index, 0), prompt) for prompt in prompts]


def writer_on(engine, config, student_text):
    profile = student_text.profile
    writer = VllmWriter(config, profile.vocabulary, profile.stop_ids, engine, {})
    writer.load(WeightSnapshot(0, "float32", {}))
    return writer


def stop_of(student_text):
    return min(student_text.profile.stop_ids)


def test_responses_are_handed_on_as_they_finish_with_the_engines_own_ids(config, student_text, tasks):
    stop = stop_of(student_text)
    engine = MadeUpEngine([([5, 6, 7, 8], "length"), ([5, stop], "stop"), ([5, 6, stop], "stop")])
    seen = []
    writer_on(engine, config, student_text).write(tasks, lambda task, ids: seen.append((task, ids.tolist())))
    assert seen == [(tasks[1], [5, stop]), (tasks[2], [5, 6, stop]), (tasks[0], [5, 6, 7, 8])]
    assert engine.aborted == []


def test_a_call_that_fails_leaves_nothing_in_the_engine(config, student_text, tasks):
    stop = stop_of(student_text)
    engine = MadeUpEngine([([5, 6, stop], "stop"), ([5, stop], "abort"), ([5, 6, 7, 8], "length")])
    with pytest.raises(RolloutFailedError, match="abort"):
        writer_on(engine, config, student_text).write(tasks, lambda task, ids: None)
    assert not engine.is_busy
    assert set(engine.aborted) >= {"0", "2"}


def test_a_response_of_other_weights_than_the_last_ones_is_refused(config, student_text, tasks):
    stop = stop_of(student_text)
    engine = MadeUpEngine([([stop], "stop")] * 3)
    writer = writer_on(engine, config, student_text)
    writer.load(WeightSnapshot(2, "float32", {}))
    assert engine.loaded == [0, 2]
    writer.write(tasks, lambda task, ids: None)
    for versions in (("1",), ("1", "2"), ()):
        engine.versions = versions
        with pytest.raises(RolloutFailedError, match="version 2"):
            writer.write(tasks, lambda task, ids: None)


def test_without_vllm_the_error_says_what_to_install(config, student_text, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    profile = student_text.profile
    with pytest.raises(InvalidConfigError, match=r"tokbridge\[vllm\]"):
        VllmWriter.start(config, profile.vocabulary, profile.stop_ids)


def test_parts_hold_all_arrays_once_and_are_no_larger_than_allowed():
    arrays = {str(n): np.zeros(n, np.float32) for n in (3, 4, 1, 9, 2, 2)}
    arrays["last"] = np.zeros(1, np.float32)
    parts = list(chunked(arrays, 28))
    assert [name for part in parts for name in part] == list(arrays)
    assert all(sum(a.nbytes for a in part.values()) <= 28 or len(part) == 1 for part in parts)
    assert len(parts) == 4
