"""Rollouts of a tiny student: complete, streamed, reproducible, and never with a forbidden token."""

import itertools

import numpy as np
import pytest
import torch

from support.training import make_config
from support.weights import another_model, broken_snapshots, own_model
from tokbridge.errors import IncompleteWeightsError
from tokbridge_trainer import weights
from tokbridge_trainer.rollout.streaming import FinishedSamples
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.rollout.transformers_writer import left_padded
from tokbridge_trainer.rollout.worker import RolloutWorker
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.student import causal_model, load_for_learning, load_for_rollouts
from tokbridge_trainer.weights import snapshot_weights


@pytest.fixture(scope="module")
def tasks(student_text):
    questions = ["hi", "what is two and two, if you please?", "she sells sea shells by the sea shore", "x"]
    prompts = [student_text.prompt(i, [{"role": "user", "content": q}], None) for i, q in enumerate(questions)]
    return [RolloutTask(SampleKey(0, prompt.index, n), prompt) for prompt in prompts for n in range(4)]


def write(student_text, config, tasks):
    samples = []
    profile = student_text.profile
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append)
    worker.set_weights(snapshot_weights(own_model(config), 0, torch.float32))
    report = worker.write(tasks)
    return {sample.key: sample for sample in samples}, report, samples


@pytest.fixture(scope="module")
def written(student_text, student_folder, tasks):
    config = make_config(student_folder, max_response_tokens=40, sampling={"temperature": 1.5})
    return config, *write(student_text, config, tasks)


def test_every_task_gives_one_sample_that_spells_its_response(written, student_text, tasks):
    _, samples, report, _ = written
    assert samples.keys() == {task.key for task in tasks}
    assert report.num_samples == len(tasks)
    assert report.num_tokens == sum(sample.num_response_tokens for sample in samples.values())
    for sample in samples.values():
        student_text.profile.vocabulary.check_spells(sample.token_ids, sample.response)


def test_responses_end_at_a_stop_token_or_the_cap_and_hold_content_only(written, student_text):
    _, samples, _, _ = written
    vocabulary, stop_ids = student_text.profile.vocabulary, student_text.profile.stop_ids
    assert {sample.stop_id is None for sample in samples.values()} == {True, False}
    for sample in samples.values():
        assert (vocabulary.lengths[sample.token_ids] > 0).all()
        if sample.stop_id is None:
            assert len(sample.token_ids) == 40
        else:
            assert sample.stop_id in stop_ids


def test_samples_arrive_as_they_finish_and_not_in_the_order_of_the_batch(written):
    _, _, _, arrived = written
    lengths = [sample.num_response_tokens for sample in arrived]
    assert lengths == sorted(lengths)
    assert [sample.key for sample in arrived] != sorted(sample.key for sample in arrived)


def test_what_a_sample_says_does_not_depend_on_its_batch(written, student_text, student_folder, tasks):
    config, samples, _, _ = written
    alone = config.model_copy(update={"rollout": config.rollout.model_copy(update={"batch_size": 3})})
    again, _, _ = write(student_text, alone, tasks[::-1])
    for key, sample in samples.items():
        np.testing.assert_array_equal(again[key].token_ids, sample.token_ids)
        assert again[key].stop_id == sample.stop_id


def test_left_padding_does_not_change_greedy_responses(student_text, student_folder, tasks):
    """Against a plain loop of forward passes, one prompt at a time, without padding, cache or `generate`."""
    config = make_config(student_folder, max_response_tokens=8, sampling={"temperature": 0.0})
    samples, _, _ = write(student_text, config, tasks[::4])
    model = own_model(config).eval()
    profile = student_text.profile
    allowed = torch.from_numpy(profile.vocabulary.lengths > 0)
    allowed[sorted(profile.stop_ids)] = True
    for sample in samples.values():
        ids = sample.prompt.token_ids.tolist()
        expected: list[int] = []
        while len(expected) < 8 and not (expected and expected[-1] in profile.stop_ids):
            with torch.no_grad():
                logits_V = model(torch.tensor([ids + expected])).logits[0, -1]
            expected.append(int(logits_V.masked_fill(~allowed, -torch.inf).argmax()))
        stop = [] if sample.stop_id is None else [sample.stop_id]
        assert sample.token_ids.tolist() + stop == expected


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_positions_are_those_of_the_learner_whatever_the_type(student_folder, lora):
    config, device = make_config(student_folder, dtype="bfloat16", lora=lora), torch.device("cpu")
    learned = dict(causal_model(load_for_learning(config, device, None)).named_buffers())
    model = load_for_rollouts(config, device)
    for name, buffer in causal_model(model).named_buffers():
        torch.testing.assert_close(buffer, learned[name], rtol=0, atol=0, msg=f"{name}: {buffer.dtype}")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_new_weights_change_samples_and_their_version(student_text, student_folder, tasks):
    config = make_config(student_folder, max_response_tokens=8)
    samples = []
    profile = student_text.profile
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append)
    worker.set_weights(snapshot_weights(own_model(config), 0, torch.float32))
    worker.write(tasks[:2])
    worker.set_weights(snapshot_weights(another_model(config), 5, torch.float32))
    worker.write(tasks[:2])
    old, new = samples[:2], samples[2:]
    assert [sample.policy_version for sample in samples] == [0, 0, 5, 5]
    assert {s.key: s.response for s in old} != {s.key: s.response for s in new}


def test_after_a_broken_update_nothing_is_written_until_a_whole_one_comes(student_text, student_folder, tasks):
    config = make_config(student_folder, max_response_tokens=8, sampling={"temperature": 0.0})
    samples = []
    profile = student_text.profile
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, samples.append)
    whole = snapshot_weights(another_model(config), 5, torch.float32)
    for broken in broken_snapshots(whole):
        with pytest.raises(IncompleteWeightsError, match="version 5"):
            worker.set_weights(broken)
        with pytest.raises(IncompleteWeightsError, match="before a whole one"):
            worker.write(tasks[:2])
    assert samples == []
    worker.set_weights(whole)
    worker.write(tasks[:2])
    assert [sample.policy_version for sample in samples] == [5, 5]


def test_an_update_that_breaks_off_while_it_is_applied_closes_the_worker(
    student_text, student_folder, tasks, monkeypatch
):
    config = make_config(student_folder, max_response_tokens=8)
    profile = student_text.profile
    worker = RolloutWorker(config, profile.vocabulary, profile.stop_ids, lambda sample: None)
    applied = itertools.count()

    def break_off(array, dtype):
        if next(applied) == 3:
            raise ConnectionError("the object store is gone")
        return torch.from_numpy(array)

    monkeypatch.setattr(weights, "as_tensor", break_off)
    with pytest.raises(ConnectionError):
        worker.set_weights(snapshot_weights(another_model(config), 5, torch.float32))
    with pytest.raises(IncompleteWeightsError):
        worker.write(tasks[:2])


def test_a_row_is_reported_once_at_its_first_stop_token():
    seen: list[tuple[int, list[int]]] = []
    watcher = FinishedSamples(frozenset({9}), 1, 3, lambda row, ids: seen.append((row, ids.tolist())))
    for ids in ([[0, 9], [0, 1]], [[0, 9, 9], [0, 1, 2]], [[0, 9, 9, 9], [0, 1, 2, 3]]):
        assert not watcher(torch.tensor(ids), None).any()
    assert seen == [(0, [9]), (1, [1, 2, 3])]


def test_left_padded_prompts_end_in_the_last_column():
    ids, mask = left_padded([np.array([1, 2, 3], np.int32), np.array([4], np.int32)], 9)
    assert ids.tolist() == [[1, 2, 3], [9, 9, 4]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 1]]
