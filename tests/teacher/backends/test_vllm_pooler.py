"""The pooler without an engine: every rank calls the LM head alike, and the start takes the most that there may be."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tokbridge_teacher.backends.vllm.answer_codec import AnswerStatus, decode_answer
from tokbridge_teacher.backends.vllm.largest_pass import largest_tables, plain_plan
from tokbridge_teacher.backends.vllm.plan_codec import encode_plan
from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions
from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest
from tokbridge_teacher.routing.device_tables import DeviceTables

pytestmark = pytest.mark.vllm

TEACHER, HIDDEN = 320, 8
OPTIONS = WorkerOptions(chunk_rows=5, max_chunk_bytes=4 * 5 * 1000, max_student_size=5000, max_cells=9)


class Worker:
    """A pooler of one rank and what its LM head was called with."""

    def __init__(self, rank, monkeypatch):
        from tokbridge_teacher.backends.vllm import target_pooler

        monkeypatch.setattr(target_pooler, "get_tensor_model_parallel_rank", lambda: rank)
        head = torch.randn(HIDDEN, TEACHER, generator=torch.Generator().manual_seed(1))
        self.called: list[np.ndarray] = []

        def compute_logits(hidden_Ph):
            self.called.append(hidden_Ph.clone().numpy())
            return hidden_Ph @ head

        config = SimpleNamespace(additional_config=OPTIONS.to_config())
        self.pooler = target_pooler.TargetPooler(compute_logits, config)
        self.pooler.tables["known"] = DeviceTables(largest_tables(TEACHER, TEACHER), "cpu")

    def step(self, requests, states, counts, ends, lengths):
        from vllm import PoolingParams
        from vllm.v1.pool.metadata import PoolingMetadata

        extras = [None if request is None else request.to_extra() for request in requests]
        params = [PoolingParams(task="token_classify", extra_kwargs=extra) for extra in extras]
        metadata = PoolingMetadata(torch.tensor(lengths), None, None, params, states)
        metadata.build_pooling_cursor(np.array(counts), torch.tensor(ends), torch.device("cpu"))
        generator = torch.Generator().manual_seed(sum(ends))
        return self.pooler(torch.randn(sum(counts), HIDDEN, generator=generator), metadata)


def states_of(number):
    from vllm.v1.pool.metadata import PoolingStates

    return [PoolingStates() for _ in range(number)]


def request_of(content_tokens, tables_key="known", prompt_tokens=3, max_chunk_rows=100):
    plan = plain_plan(np.arange(content_tokens), 4)
    return WorkerRequest(tables_key, prompt_tokens - 1, max_chunk_rows, encode_plan(plan))


def test_every_rank_calls_the_head_with_the_same_rows_whatever_becomes_of_a_response(monkeypatch):
    requests = [request_of(6), request_of(12, "unknown", max_chunk_rows=2), request_of(9)]
    lengths = [9, 15, 12]
    workers = [Worker(rank, monkeypatch) for rank in (0, 1)]
    answers = []
    for worker in workers:
        states = states_of(3)
        first = worker.step(requests, states, [7, 2, 6], [7, 2, 6], lengths)
        assert first == [None, None, None]
        worker.step(requests[1:], states[1:], [5, 4], [7, 10], lengths[1:])
        answers.append(worker.step(requests, states, [2, 8, 2], [9, 15, 12], lengths))
    # Five rows a call, and two where the second response has part in the step.
    assert [len(rows) for rows in workers[0].called] == [5, 4, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2]
    for left, right in zip(workers[0].called, workers[1].called, strict=True):
        np.testing.assert_array_equal(left, right)
    decoded = [decode_answer(answer.numpy().data) for answer in answers[0]]
    wanted = [AnswerStatus.COMPUTED, AnswerStatus.UNKNOWN_TABLES, AnswerStatus.COMPUTED]
    assert [answer.status for answer in decoded] == wanted
    assert [sum(chunk.stop - chunk.start for chunk in answer.chunks) for answer in decoded] == [7, 0, 10]
    assert not any(decode_answer(answer.numpy().data).chunks for answer in answers[1])


def test_the_start_takes_as_much_as_any_chunk_may(monkeypatch):
    from tokbridge_teacher.backends.vllm import target_pooler

    taken = []

    def measured(logits, plan_slice, tables):
        taken.append(len(logits) * (tables.teacher_size + tables.student_size))
        assert plan_slice.num_cells == OPTIONS.max_cells
        assert len(plan_slice.base.rows) == len(logits) - 1

    monkeypatch.setattr(target_pooler, "marginalize", measured)
    worker = Worker(0, monkeypatch)
    outputs = worker.step([None, None], states_of(2), [2, 1], [2, 1], [2, 1])
    assert [output.numel() for output in outputs] == [0, 0]
    assert [len(rows) for rows in worker.called] == [OPTIONS.chunk_rows]
    for student in range(1, OPTIONS.max_student_size, 7):
        columns = TEACHER + student
        rows = min(OPTIONS.chunk_rows, OPTIONS.max_chunk_bytes // (4 * columns))
        assert rows * columns <= taken[0]
