"""Passes of the transformers backend that take turns: the same bits as alone, bounded steps, faults that stay apart."""

import numpy as np
import pytest
import torch

from support.backend_bench import Bench, Recorder
from tokbridge.errors import NonFiniteLogitsError
from tokbridge_teacher.backends import huggingface

LONG = b"six times seven is forty-two. " * 12
SHORT = (b"The quick brown fox", b"12, 345", b"def add(first, second):", b"")


@pytest.fixture(scope="module")
def bench(teacher_folder):
    return Bench(teacher_folder)


def arrays_of(recorder: Recorder) -> list[np.ndarray]:
    return [
        array
        for chunk in recorder.chunks
        for array in (
            chunk.realized_log_probs,
            chunk.block.cell_ids,
            chunk.block.cell_masses,
            chunk.block.support_masses,
        )
    ]


def assert_same_bits(left: Recorder, right: Recorder) -> None:
    assert [(chunk.start, chunk.stop) for chunk in left.chunks] == [(chunk.start, chunk.stop) for chunk in right.chunks]
    for a, b in zip(arrays_of(left), arrays_of(right), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("pattern", [(1, 1), (1, 3), (5, 1)])
def test_interleaved_passes_give_the_bits_that_they_give_alone(bench, pattern):
    backend = bench.backend(chunk_rows=7, piece_tokens=40, batch_tokens=200)

    def passes() -> list[list[Recorder]]:
        return [[bench.recorder(b"a prompt", LONG)], [bench.recorder(b"one for all", text) for text in SHORT]]

    alone, together = passes(), passes()
    for recorders in alone:
        backend.score([recorder.job for recorder in recorders])
    steps = [backend.steps([recorder.job for recorder in recorders]) for recorders in together]
    left = set(range(len(steps)))
    while left:
        for number, count in enumerate(pattern):
            for _ in range(count):
                if number in left and next(steps[number], left) is left:
                    left.remove(number)
    for recorders, reference in zip(together, alone, strict=True):
        for recorder, other in zip(recorders, reference, strict=True):
            assert recorder.errors == []
            assert recorder.shared == other.shared is not None
            assert_same_bits(recorder, other)


def test_a_step_is_at_most_one_forward_pass_and_one_chunk(bench, monkeypatch):
    backend = bench.backend(chunk_rows=7, piece_tokens=40)
    done: list[str] = []
    decoder, head = backend._hidden_states._decoder.forward, backend._head
    monkeypatch.setattr(
        backend._hidden_states._decoder, "forward", lambda **inputs: done.append("pass") or decoder(**inputs)
    )
    monkeypatch.setattr(backend, "_head", lambda hidden: done.append("chunk") or head(hidden))
    recorders = [bench.recorder(b"a prompt of a few tokens " * 9, text) for text in (LONG, *SHORT)]
    for _ in backend.steps([recorder.job for recorder in recorders]):
        assert done.count("pass") <= 1
        assert done.count("chunk") <= 1
        done.clear()
    assert all(recorder.shared is not None for recorder in recorders)


def test_the_last_chunk_of_a_response_ends_it_in_the_same_step(bench):
    """Else a response that is complete would wait for another pass to take its turn."""
    recorder = bench.recorder(b"prompt", SHORT[0])
    for _ in bench.backend(chunk_rows=4).steps([recorder.job]):
        complete = bool(recorder.chunks) and recorder.chunks[-1].stop == recorder.job.plan.num_positions
        assert complete == (recorder.shared is not None)
    assert recorder.shared is not None


def test_a_response_that_nobody_waits_for_stops_at_its_next_chunk(bench):
    gone, other = bench.recorder(b"prompt", LONG, cancel_after=2), bench.recorder(b"prompt", LONG)
    bench.backend(chunk_rows=4, piece_tokens=4096).score([gone.job, other.job])
    assert len(gone.chunks) == 2
    assert other.shared is not None


def poison(bench: Bench, recorder: Recorder) -> int:
    """A token that only this response holds; its embedding becomes NaN, as a fault of the model would."""
    token = int(recorder.job.plan.teacher_ids[-1])
    with torch.no_grad():
        bench.model.get_input_embeddings().weight[token] = float("nan")
    return token


def test_a_model_that_yields_nan_for_one_response_fails_that_one_only(teacher_folder):
    bench = Bench(teacher_folder)
    backend = bench.backend(chunk_rows=64)
    healthy = [bench.recorder(b"prompt", text) for text in (b"six times seven", b"the lazy dog", b"12")]
    faulty = bench.recorder(b"prompt", "東京".encode())
    reference = [bench.reference(recorder) for recorder in healthy]
    token = poison(bench, faulty)
    assert all(token not in recorder.job.plan.teacher_ids for recorder in healthy)
    jobs = [healthy[0].job, faulty.job, *(recorder.job for recorder in healthy[1:])]
    backend.score(jobs)
    assert [type(error) for error in faulty.errors] == [NonFiniteLogitsError]
    assert faulty.shared is None
    for recorder, expected in zip(healthy, reference, strict=True):
        assert recorder.errors == []
        np.testing.assert_allclose(recorder.emitted_log_probs(), expected, atol=5e-5)


def test_an_id_that_no_response_holds_touches_none_even_as_padding(teacher_folder):
    bench = Bench(teacher_folder)
    recorders = [bench.recorder(b"prompt", text) for text in (b"six times seven", b"12")]
    with torch.no_grad():
        bench.model.get_input_embeddings().weight[0] = float("nan")
    assert not any(0 in recorder.job.plan.teacher_ids for recorder in recorders)
    bench.backend().score([recorder.job for recorder in recorders])
    assert [recorder.errors for recorder in recorders] == [[], []]


def test_infinite_logits_are_such_a_fault_too(bench, monkeypatch):
    recorder, plain = bench.recorder(b"prompt", SHORT[0]), huggingface.marginalize

    def overflow(logits, plan_slice, tables):
        logits[-1, 5] = float("inf")
        return plain(logits, plan_slice, tables)

    monkeypatch.setattr(huggingface, "marginalize", overflow)
    bench.backend().score([recorder.job])
    assert [type(error) for error in recorder.errors] == [NonFiniteLogitsError]
