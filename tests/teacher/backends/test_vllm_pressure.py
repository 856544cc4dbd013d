"""The backend on vLLM when keys and values do not fit, when the model gives NaN, and when the engine dies."""

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.backend_bench import Bench
from support.vllm_bench import running_backend
from support.vllm_models import save_vllm_model
from tokbridge.errors import InternalError, NonFiniteLogitsError, OverloadedError
from tokbridge_teacher.backends.base import run_to_end
from tokbridge_teacher.backends.vllm.engine_types import EngineStoppedError

pytestmark = pytest.mark.vllm

POISON = "<tool_call>"
"""The model's embedding of this token is NaN."""
BLOCKS = 12
"""Of 128 tokens each: two responses of ten blocks do not fit."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = save_vllm_model("qwen3", tmp_path_factory.mktemp("qwen3"))
    weights = load_file(folder / "model.safetensors")
    bench = Bench(folder)
    weights["model.embed_tokens.weight"][bench.profile.vocabulary.token_bytes.index(POISON.encode())] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return bench


@pytest.fixture(scope="module")
def backend(bench):
    arguments = {"num_gpu_blocks_override": BLOCKS, "scheduler_reserve_full_isl": False}
    with running_backend(bench.folder, **arguments, max_model_len=(BLOCKS - 1) * 128) as backend:
        yield backend


def test_responses_that_do_not_fit_together_come_out_whole(bench, backend):
    recorders = [bench.recorder(b"%d " % number * 20, b"%d is a number; " % number * 210) for number in range(5)]
    backend.score([recorder.job for recorder in recorders])
    for recorder in recorders:
        assert recorder.errors == []
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=5e-5)


def test_nan_is_the_fault_of_its_response(bench, backend):
    good = b"six times seven is forty-two. " * 20
    poisoned = bench.recorder(b"prompt", good + POISON.encode() + good)
    others = [bench.recorder(b"prompt", good), bench.recorder(b"other", good)]
    backend.score([others[0].job, poisoned.job, others[1].job])
    (error,) = poisoned.errors
    assert isinstance(error, NonFiniteLogitsError)
    poison_id = bench.profile.vocabulary.token_bytes.index(POISON.encode())
    # Attention works on tiles: the rows before it in the same tile are lost, too.
    assert 0 < error.details["position"] <= poisoned.job.plan.teacher_ids.tolist().index(poison_id) + 1
    assert poisoned.chunks == []
    for recorder in others:
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=5e-5)


def test_a_response_may_fill_the_context_to_its_last_token(bench, backend):
    context = backend.describe().context_length
    fitting, too_long = (_of_length(bench, tokens) for tokens in (context, context + 1))
    other = bench.recorder(b"prompt", b"one two three")
    backend.score([fitting.job, too_long.job, other.job])
    for recorder in (fitting, other):
        assert recorder.errors == []
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=5e-5)
    assert [type(error) for error in too_long.errors] == [InternalError]


def _of_length(bench, tokens):
    recorder = bench.recorder(b"a prompt ", b"one two three " * 100)
    prompt_ids = np.resize(recorder.job.prompt_ids, tokens - len(recorder.job.plan.teacher_ids))
    recorder.job = replace(recorder.job, prompt_ids=prompt_ids)
    return recorder


def test_an_engine_that_dies_ends_calls_and_responses_and_is_started_again_with_its_tables(bench, backend):
    lost = bench.recorder(b"prompt", b"one two three " * 60)
    steps = backend.steps([lost.job])
    next(steps)
    children = psutil.Process().children(recursive=True)
    (core,) = (child for child in children if "EngineCore" in " ".join(child.cmdline()))
    core.suspend()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(backend.engine.call_workers, "tokbridge_drop_tables", ["another"])
        assert wait([call], 0.5).not_done
        core.kill()
        with pytest.raises(EngineStoppedError):
            call.result(60)
    with pytest.raises(OverloadedError):
        run_to_end(steps)
    again = bench.recorder(b"prompt", b"one two three " * 60)
    backend.score([again.job])
    np.testing.assert_allclose(again.emitted_log_probs(), bench.reference(again), atol=5e-5)
