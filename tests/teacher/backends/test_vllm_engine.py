"""The backend on vLLM beside the transformers backend: the same rows, whatever the engine does with the responses."""

import random

import numpy as np
import pytest

from support.backend_bench import Bench
from support.vllm_bench import BLOCK_TOKENS, apart, largest_difference, responses, rows_of, running_backend, scored_by
from support.vllm_models import save_vllm_model
from tokbridge_teacher.backends.base import run_to_end

pytestmark = pytest.mark.vllm

FLOAT32 = 2e-5


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(save_vllm_model("qwen3", tmp_path_factory.mktemp("qwen3")))


@pytest.fixture(scope="module")
def backend(bench):
    with running_backend(bench.folder) as backend:
        yield backend


@pytest.fixture(scope="module")
def expected(bench):
    return scored_by(bench.backend(), responses(bench))


def differences(bench, expected, got):
    columns = bench.profile.vocabulary.size
    return [largest_difference(*pair, columns) for pair in zip(expected, got, strict=True)]


def test_the_self_test_passes_and_tells_the_size_of_the_head(bench, backend):
    report = backend.self_test()
    assert report.head_error < 1e-5
    assert report.disabled_paths == ()
    assert max(report.path_errors.values()) < 1e-4
    description = backend.describe()
    assert (description.head_size, description.dtype, description.device) == (
        bench.tables.teacher.size,
        "float32",
        "cpu",
    )
    assert not description.in_process


def test_rows_are_those_of_transformers(bench, backend):
    difference = apart(bench, backend)
    print("largest difference, qwen3, float32:", difference)
    assert difference < FLOAT32


def test_rows_do_not_depend_on_batch_mates_or_order(bench, backend, expected):
    recorders = responses(bench)
    order = list(range(len(recorders)))
    random.Random(3).shuffle(order)
    for number in order[:4]:
        backend.score([recorders[number].job])
    backend.score([recorders[number].job for number in order[4:]])
    assert max(differences(bench, expected, [rows_of(recorder) for recorder in recorders])) < FLOAT32


def test_a_prefix_hit_takes_no_row_away(bench, backend):
    prompt, text = b"another prompt, seen for the first time. " * 12, b"an answer of some length, " * 20
    first, again = bench.recorder(prompt, text), bench.recorder(prompt, text)
    longer = bench.recorder(prompt, text + b"and one that goes on")
    for recorder in (first, again, longer):
        backend.score([recorder.job])
    assert len(first.job.plan.teacher_ids) > BLOCK_TOKENS
    assert (first.shared, again.shared) == (0, 0)  # the second hit reached into the rows, so its prompt was run again
    fresh = bench.recorder(prompt, b"something else entirely")
    backend.score([fresh.job])
    assert fresh.shared == (len(fresh.job.prompt_ids) - 1) // BLOCK_TOKENS * BLOCK_TOKENS > 0
    for recorder in (first, again, longer, fresh):
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=5e-5)


def test_a_cancelled_job_leaves_the_engine_and_the_others_go_on(bench, backend):
    text = b"six times seven is forty-two. " * 60
    never, given_up, other = (bench.recorder(b"cancelled", text) for _ in range(3))
    never.cancel_after = 0
    steps = backend.steps([never.job, given_up.job, other.job])
    next(steps)
    given_up.cancel_after = 0
    run_to_end(steps)
    assert (len(never.chunks), len(given_up.chunks)) == (0, 0)
    np.testing.assert_allclose(other.emitted_log_probs(), bench.reference(other), atol=5e-5)


def test_steps_that_are_dropped_cancel_their_responses(bench, backend):
    dropped = bench.recorder(b"dropped", b"one two three " * 90)
    steps = backend.steps([dropped.job])
    next(steps)
    steps.close()
    other = bench.recorder(b"dropped", b"four")
    backend.score([other.job])
    assert dropped.chunks == []
    assert other.shared is not None


def test_several_passes_are_in_the_engine_at_once(bench, backend):
    recorders = [bench.recorder(b"p", b"alternating " * 30) for _ in range(4)]
    passes = [backend.steps([recorder.job]) for recorder in recorders]
    while passes:
        for steps in list(passes):
            try:
                next(steps)
            except StopIteration:
                passes.remove(steps)
    for recorder in recorders:
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=5e-5)
