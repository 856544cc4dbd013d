"""Rollouts on a real vLLM engine, against transformers: tokens, endings, weight updates whole and broken.

One engine serves the whole module: starting one takes long.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from support.tiny_models import TINY_STUDENT_FOR_VLLM, save_tiny_model
from support.training import make_config
from support.weights import another_model, broken_snapshots, own_model
from tokbridge.errors import IncompleteWeightsError, InvalidConfigError
from tokbridge_trainer.checkpoint_names import CheckpointNames, snapshot_checkpoint
from tokbridge_trainer.rollout import vllm_engine
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.rollout.transformers_writer import TransformersWriter
from tokbridge_trainer.rollout.vllm_arguments import sampling_arguments
from tokbridge_trainer.rollout.vllm_engine import VllmEngine
from tokbridge_trainer.rollout.vllm_writer import VllmWriter
from tokbridge_trainer.rollout.worker import RolloutWorker
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.student_text import load_student_text
from tokbridge_trainer.weights import snapshot_weights

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

VLLM = {"backend": "vllm", "vllm": {"enforce_eager": True, "engine_args": {"kv_cache_memory_bytes": 64 << 20}}}


def config_of(folder, **values):
    greedy = {"max_prompt_tokens": 600, "max_response_tokens": 24, "sampling": {"temperature": 0.0}, "rollout": VLLM}
    return make_config(folder, **(greedy | values))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(TINY_STUDENT_FOR_VLLM, tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="module")
def text(folder):
    return load_student_text(config_of(folder))


@pytest.fixture(scope="module")
def tasks(text):
    # Of several blocks of the prefix cache, which on CPU are of 128 tokens, so that it has something to hold.
    questions = ["hi", "she sells sea shells by the sea shore; " * 30, "x" * 400]
    prompts = [text.prompt(i, [{"role": "user", "content": q}], None) for i, q in enumerate(questions)]
    return [RolloutTask(SampleKey(0, prompt.index, n), prompt) for prompt in prompts for n in range(2)]


@pytest.fixture(scope="module")
def engine(folder, text):
    vllm_distributed = pytest.importorskip("vllm.distributed")
    started = VllmWriter.start(config_of(folder), text.profile.vocabulary, text.profile.stop_ids)
    yield started._engine
    vllm_distributed.cleanup_dist_env_and_memory()


def snapshot_of(model, version):
    return snapshot_checkpoint(model, CheckpointNames(model.config.name_or_path), version, torch.float32)


def worker_on(engine, config, text):
    """A worker on the module's engine with the student's own weights, and the list its samples go to."""
    profile, samples = text.profile, []
    names = CheckpointNames(config.student.model)
    writer = VllmWriter(config, profile.vocabulary, profile.stop_ids, engine, names.shapes)
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append, writer)
    worker.set_weights(snapshot_checkpoint(own_model(config), names, 0, torch.float32))
    return worker, samples


def written_by_transformers(config, text, tasks, model):
    profile, samples = text.profile, []
    writer = TransformersWriter(config, profile.vocabulary, profile.stop_ids)
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append, writer)
    worker.set_weights(snapshot_weights(model, 0, torch.float32))
    worker.write(tasks)
    return ids_by_key(samples)


def ids_by_key(samples):
    return {sample.key: (sample.token_ids.tolist(), sample.stop_id) for sample in samples}


def test_greedy_responses_are_those_of_transformers(engine, folder, text, tasks):
    config = config_of(folder)
    worker, samples = worker_on(engine, config, text)
    report = worker.write(tasks)
    assert ids_by_key(samples) == written_by_transformers(config, text, tasks, own_model(config))
    assert report.num_tokens == sum(sample.num_response_tokens for sample in samples)
    for sample in samples:
        text.profile.vocabulary.check_spells(sample.token_ids, sample.response)


def test_after_an_update_responses_are_those_of_the_new_weights(engine, folder, text, tasks):
    """The same long prompts before and after: nothing the old weights computed may be reused."""
    config = config_of(folder)
    worker, samples = worker_on(engine, config, text)
    worker.write(tasks)
    old = ids_by_key(samples)
    for version in (1, 2):
        samples.clear()
        model = another_model(config, version)
        worker.set_weights(snapshot_of(model, version))
        worker.write(tasks)
        new = ids_by_key(samples)
        assert new == written_by_transformers(config, text, tasks, model)
        assert all(new[key] != old[key] for key in new)
        assert {sample.policy_version for sample in samples} == {version}
        old = new


def test_an_update_that_is_not_whole_is_never_sampled_from(engine, folder, text, tasks):
    config = config_of(folder)
    worker, samples = worker_on(engine, config, text)
    model = another_model(config, 3)
    whole = snapshot_of(model, 3)
    for broken in broken_snapshots(whole):
        with pytest.raises(IncompleteWeightsError):
            worker.set_weights(broken)
        with pytest.raises(IncompleteWeightsError):
            worker.write(tasks)
    assert samples == []
    worker.set_weights(whole)
    worker.write(tasks)
    assert ids_by_key(samples) == written_by_transformers(config, text, tasks, model)


@pytest.mark.parametrize("parts_before_the_break", [0, 3, 7])
def test_an_update_that_breaks_off_half_applied_is_never_sampled_from(
    engine, folder, text, tasks, monkeypatch, parts_before_the_break
):
    """Parameter by parameter, so that it breaks between q, k and v, which vLLM fuses."""
    from tokbridge_trainer.rollout.vllm_transfer import ArrayTransferEngine

    config = config_of(folder)
    worker, samples = worker_on(engine, config, text)
    received = itertools.count()
    receive = ArrayTransferEngine.receive_weights

    def break_off(self, update_info):
        if next(received) == parts_before_the_break:
            raise ConnectionError("the learner is gone")
        receive(self, update_info)

    monkeypatch.setattr(vllm_engine, "_CHUNK_BYTES", 1)
    with monkeypatch.context() as patched:
        patched.setattr(ArrayTransferEngine, "receive_weights", break_off)
        with pytest.raises(ConnectionError):
            worker.set_weights(snapshot_of(another_model(config, 4), 4))
    with pytest.raises(IncompleteWeightsError):
        worker.write(tasks)
    assert samples == []
    model = another_model(config, 5)
    worker.set_weights(snapshot_of(model, 5))
    worker.write(tasks)
    assert ids_by_key(samples) == written_by_transformers(config, text, tasks, model)


def test_a_weight_that_the_engine_was_not_given_is_an_error_there_too(engine, folder):
    """The second line of defence: what names and shapes did not tell, vLLM's own parameters do."""
    whole = snapshot_of(another_model(config_of(folder)), 1)
    arrays = {name: array for name, array in whole.arrays.items() if "norm" not in name}
    with pytest.raises(ValueError, match="were not given"):
        engine.replace_weights(dataclasses.replace(whole, arrays=arrays))


def test_log_probs_of_what_was_sampled_agree_with_transformers(engine, folder, text, tasks):
    from vllm import SamplingParams

    config = config_of(folder, sampling={"temperature": 1.0})
    model = own_model(config).eval()
    engine.replace_weights(snapshot_of(model, 0))
    for task in tasks:
        prompt = task.prompt.token_ids.tolist()
        arguments = sampling_arguments(config, task.key, text.profile.stop_ids, [])
        (output,) = engine._llm.generate(
            [{"prompt_token_ids": prompt}], SamplingParams(logprobs=0, **arguments), use_tqdm=False
        )
        (completion,) = output.outputs
        ids = list(completion.token_ids)
        theirs = [step[token_id].logprob for token_id, step in zip(ids, completion.logprobs, strict=True)]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        ours = logits.double().log_softmax(-1)[range(len(ids)), ids]
        np.testing.assert_allclose(theirs, ours, atol=1e-3)


def test_a_stop_token_at_the_length_cap_is_a_stop_and_one_before_it_a_cut(engine, folder, text, tasks):
    config = config_of(folder, sampling={"temperature": 1.5})
    worker, samples = worker_on(engine, config, text)
    many = [RolloutTask(SampleKey(1, task.prompt.index, n), task.prompt) for task in tasks for n in range(8)]
    worker.write(many)
    assert {sample.stop_id is None for sample in samples} == {True, False}
    stopped = next(s for s in samples if s.stop_id is not None and len(s.token_ids) > 2)
    assert stopped.stop_id in text.profile.stop_ids
    for cap, stop_id in ((stopped.num_response_tokens, stopped.stop_id), (len(stopped.token_ids), None)):
        capped, again = worker_on(engine, config.model_copy(update={"max_response_tokens": cap}), text)
        capped.write([RolloutTask(stopped.key, stopped.prompt)])
        assert [(s.token_ids.tolist(), s.stop_id) for s in again] == [(stopped.token_ids.tolist(), stop_id)]


def test_nothing_forbidden_is_sampled_samples_stream_and_repeat_themselves(engine, folder, text, tasks):
    config = config_of(folder, sampling={"temperature": 2.0})
    worker, samples = worker_on(engine, config, text)
    many = [RolloutTask(SampleKey(2, task.prompt.index, n), task.prompt) for task in tasks[::2] for n in range(16)]
    worker.write(many)
    content = np.concatenate([sample.token_ids for sample in samples])
    assert (text.profile.vocabulary.lengths[content] > 0).all()
    lengths = [sample.num_response_tokens for sample in samples]
    assert lengths == sorted(lengths)
    assert len({sample.response for sample in samples}) > 16
    alone, again = worker_on(engine, config, text)
    for task in many[::5]:
        alone.write([task])
    first = ids_by_key(samples)
    assert all(first[key] == ids for key, ids in ids_by_key(again).items())


def test_a_sink_that_fails_leaves_the_engine_usable(engine, folder, text, tasks):
    config = config_of(folder)
    profile = text.profile
    writer = VllmWriter(config, profile.vocabulary, profile.stop_ids, engine, {})
    writer.load(snapshot_of(own_model(config), 0))
    with pytest.raises(ZeroDivisionError):
        writer.write(tasks, lambda task, ids: 1 // 0)
    assert not engine.is_busy
    worker, samples = worker_on(engine, config, text)
    worker.set_weights(snapshot_of(another_model(config), 1))
    worker.write(tasks)
    assert len(samples) == len(tasks)


def test_what_vllm_refuses_is_a_typed_error(folder, text):
    pytest.importorskip("vllm")
    with pytest.raises(InvalidConfigError, match="no_such_argument"):
        VllmEngine({"model": str(folder), "no_such_argument": 1}, 0)
