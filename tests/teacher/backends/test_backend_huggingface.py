from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.backend_bench import Bench
from support.tiny_models import TINY_LONGROPE, TINY_SCALED, TINY_SOFTCAPPED, save_tiny_model
from tokbridge.errors import InvalidConfigError, NonFiniteLogitsError, SelfTestFailedError
from tokbridge_teacher.backends import huggingface, self_test
from tokbridge_teacher.backends.batching import group_responses
from tokbridge_teacher.backends.huggingface import BackendLimits, HuggingFaceBackend
from tokbridge_teacher.backends.lm_head import LmHead
from tokbridge_teacher.backends.model_loading import context_length, find_gguf_file, load_model, resolve_device

TEXTS = (b"The quick brown fox", b"six times seven is forty-two. " * 6, b"", b"12, 345", b"def add(first, second):")


@pytest.fixture(scope="module")
def bench(teacher_folder):
    return Bench(teacher_folder)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"chunk_rows": 1},
        {"chunk_rows": 7, "piece_tokens": 5},
        {"chunk_rows": 3, "piece_tokens": 64, "batch_tokens": 30},
        {"piece_tokens": 1},
    ],
)
def test_every_way_through_gives_the_models_own_log_probs(bench, limits):
    recorders = [bench.recorder(b"one prompt for all of them", text) for text in TEXTS]
    recorders += [
        bench.recorder(prompt, text) for prompt, text in zip((b"x", b"other prompts " * 9), TEXTS, strict=False)
    ]
    bench.backend(**limits).score([recorder.job for recorder in recorders])
    for recorder in recorders:
        assert recorder.errors == []
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=5e-5)
    shared = {recorder.shared for recorder in recorders[: len(TEXTS)]}
    assert shared == {len(recorders[0].job.prompt_ids) - 1}
    assert [recorder.shared for recorder in recorders[len(TEXTS) :]] == [0, 0]


@pytest.mark.parametrize("recipe", [TINY_SOFTCAPPED, TINY_SCALED], ids=lambda recipe: recipe.name)
def test_soft_capped_and_scaled_logits_and_sliding_windows(recipe, tmp_path):
    bench = Bench(save_tiny_model(recipe, tmp_path))
    backend = bench.backend(piece_tokens=9, chunk_rows=5)
    assert backend.self_test().disabled_paths == ()
    recorders = [bench.recorder(b"a prompt that is longer than the window of sixteen tokens", text) for text in TEXTS]
    backend.score([recorder.job for recorder in recorders])
    for recorder in recorders:
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=1e-4)


def test_frequencies_that_depend_on_the_length_are_those_of_the_whole_response_alone(tmp_path):
    """A piece, or a neighbour in a batch, would decide between the two sets of frequencies."""
    bench = Bench(save_tiny_model(TINY_LONGROPE, tmp_path))
    backend = bench.backend(piece_tokens=32)
    assert set(backend.self_test().disabled_paths) == {"pieces", "padded_batch", "shared_prompt"}
    recorders = [bench.recorder(b"one prompt", text) for text in (TEXTS[0], TEXTS[1] * 3, TEXTS[3], TEXTS[1] * 2)]
    assert sum(recorder.job.num_tokens > 100 for recorder in recorders) == 2
    backend.score([recorder.job for recorder in recorders])
    for recorder in recorders:
        np.testing.assert_allclose(recorder.emitted_log_probs(), bench.reference(recorder), atol=1e-4)


def test_within_the_length_of_the_first_frequencies_every_path_is_taken(tmp_path):
    config = Bench(save_tiny_model(TINY_LONGROPE, tmp_path)).model.config
    assert not self_test.depends_on_length(config, 100)
    assert self_test.depends_on_length(config, 101)


def test_a_bfloat16_head_is_accurate_to_float32(teacher_folder):
    model = load_model(str(teacher_folder), dtype="bfloat16", device="cpu")
    hidden = torch.randn(11, model.config.hidden_size, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = hidden.double() @ model.get_output_embeddings().weight.double().T
    assert torch.allclose(LmHead(model)(hidden).double(), exact, atol=2e-5)
    rounded = model.get_output_embeddings()(hidden).double()
    assert (rounded - exact).abs().max() > 1e-3


def test_emission_is_in_order_and_bounded_by_the_chunk(bench):
    recorder = bench.recorder(b"prompt", TEXTS[1])
    bench.backend(chunk_rows=4, piece_tokens=10).score([recorder.job])
    spans = [(chunk.start, chunk.stop) for chunk in recorder.chunks]
    assert spans[0][0] == 0
    assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
    assert spans[-1][1] == recorder.job.plan.num_positions
    assert max(stop - start for start, stop in spans) <= 4


def test_a_cancelled_job_stops_and_the_others_go_on(bench):
    cancelled = bench.recorder(b"prompt", TEXTS[1], cancel_after=1)
    never = bench.recorder(b"prompt", TEXTS[1], cancel_after=0)
    other = bench.recorder(b"prompt", TEXTS[1])
    bench.backend(chunk_rows=4, piece_tokens=12).score([cancelled.job, never.job, other.job])
    assert len(never.chunks) == 0
    assert len(cancelled.chunks) < len(other.chunks)
    assert (cancelled.shared, never.shared) == (None, None)
    np.testing.assert_allclose(other.emitted_log_probs(), bench.reference(other), atol=5e-5)


def test_non_finite_logits_fail_their_own_response_only(bench, monkeypatch):
    poisoned, healthy = bench.recorder(b"prompt", TEXTS[0]), bench.recorder(b"prompt", TEXTS[3])
    plain = huggingface.marginalize

    def poison(logits, plan_slice, tables):
        if plan_slice.realized_ids.tolist() == poisoned.job.plan.teacher_ids[: len(plan_slice.realized_ids)].tolist():
            logits[0, 0] = float("nan")
        return plain(logits, plan_slice, tables)

    monkeypatch.setattr(huggingface, "marginalize", poison)
    bench.backend().score([poisoned.job, healthy.job])
    assert [type(error) for error in poisoned.errors] == [NonFiniteLogitsError]
    assert poisoned.shared is None
    assert healthy.shared is not None


def test_the_self_test_refuses_a_head_it_does_not_reproduce(teacher_folder):
    model = load_model(str(teacher_folder), dtype="float32", device="cpu")
    plain = model.forward
    model.forward = lambda **arguments: _scaled(plain(**arguments))
    backend = HuggingFaceBackend(model, name="tiny", context_length=64, limits=BackendLimits())
    with pytest.raises(SelfTestFailedError, match="log-probs"):
        backend.self_test()


def _scaled(output):
    output.logits = output.logits * 1.5
    return output


def test_a_path_that_differs_is_switched_off(bench, monkeypatch):
    plain = self_test._path_error
    monkeypatch.setattr(
        self_test, "_path_error", lambda *a, share, batch: 1.0 if share else plain(*a, share=share, batch=batch)
    )
    backend = bench.backend()
    assert backend.self_test().disabled_paths == ("shared_prompt",)
    recorders = [bench.recorder(b"prompt", text) for text in TEXTS[:2]]
    backend.score([recorder.job for recorder in recorders])
    assert [recorder.shared for recorder in recorders] == [0, 0]


@settings(max_examples=60)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=9),
    batch_tokens=st.integers(1, 60),
    share=st.booleans(),
    batch=st.booleans(),
)
def test_groups_hold_every_response_once_under_the_budget(shapes, batch_tokens, share, batch):
    prompts = [np.full(length, kind, np.int32) for kind, length, _ in shapes]
    contents = [np.arange(length, dtype=np.int32) + 100 for *_, length in shapes]
    seen = []
    for group in group_responses(prompts, contents, batch_tokens=batch_tokens, share_prompts=share, batch=batch):
        for micro_batch in group.batches:
            for index, suffix, first in zip(
                micro_batch.members, micro_batch.suffixes, micro_batch.first_columns, strict=True
            ):
                seen.append(index)
                whole = np.concatenate([prompts[index], contents[index]])
                assert np.concatenate([group.prefix_ids, suffix]).tolist() == whole.tolist()
                assert len(group.prefix_ids) + first == len(prompts[index]) - 1
            size = len(micro_batch.members)
            assert size == 1 or (batch and size * (len(group.prefix_ids) + micro_batch.width) <= batch_tokens)
            assert share or len(group.prefix_ids) == 0
    assert sorted(seen) == list(range(len(shapes)))


def test_loading_says_what_is_wrong(tmp_path):
    with pytest.raises(InvalidConfigError):
        load_model(str(tmp_path), dtype="float32", device="cpu")
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(InvalidConfigError, match="2 GGUF"):
        find_gguf_file(str(tmp_path))
    assert find_gguf_file(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    with pytest.raises(InvalidConfigError):
        resolve_device("abacus")


def test_the_context_is_what_the_model_and_the_user_allow(bench):
    assert context_length(bench.model, None) == 4096
    assert context_length(bench.model, 100) == 100
    assert context_length(bench.model, 10**9) == 4096


def test_an_integer_head_is_refused():
    class Quantised:
        weight = torch.zeros(3, 4, dtype=torch.int8)

    class Model:
        def get_output_embeddings(self):
            return Quantised()

    with pytest.raises(InvalidConfigError, match="LM head"):
        LmHead(cast(Any, Model()))
