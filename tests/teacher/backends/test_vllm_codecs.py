"""What travels to a worker and back is what was sent."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.target_problems import problem_plan, problem_tables, random_problem
from tokbridge_teacher.backends.vllm.answer_codec import AnswerStatus, AnswerWriter, decode_answer
from tokbridge_teacher.backends.vllm.array_codec import join_ragged, split_ragged
from tokbridge_teacher.backends.vllm.chunk_codec import decode_chunk, encode_chunk
from tokbridge_teacher.backends.vllm.largest_pass import largest_slice, largest_tables
from tokbridge_teacher.backends.vllm.plan_codec import decode_plan, decode_tables, encode_plan, encode_tables
from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions
from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import ScoringOptions

MODES = [("greedy", "realized"), ("bpe", "realized"), ("bpe", "lookahead")]


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif is_dataclass(left):
        for field in fields(left):
            assert_same(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


def a_case(seed, modes=MODES[0]):
    problem = random_problem(seed, modes[0])
    tables = problem_tables(problem, modes[0])
    return tables, problem_plan(problem, tables, ScoringOptions(*modes, 8, 1.0))


@given(seed=st.integers(0, 200), modes=st.sampled_from(MODES))
def test_a_plan_comes_back_as_it_was(seed, modes):
    _, plan = a_case(seed, modes)
    assert_same(decode_plan(encode_plan(plan.device_plan)), plan.device_plan)


@given(seed=st.integers(0, 200), modes=st.sampled_from(MODES))
def test_a_chunk_comes_back_as_it_was(seed, modes):
    tables, plan = a_case(seed, modes)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(plan.num_positions, tables.teacher.size, generator=generator)
    chunk = marginalize(logits, plan.slice(0, plan.num_positions), tables.on_device("cpu"))
    back = decode_chunk(encode_chunk(chunk))
    assert_same(back, chunk)


def test_tables_come_back_as_they_were():
    arrays = a_case(11)[0].on_device("cpu").arrays
    assert_same(decode_tables(encode_tables(arrays)), arrays)


@given(st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=5))
def test_ragged_arrays(lists):
    joined, lengths = join_ragged([np.array(each, np.int64) for each in lists], np.int64)
    assert [part.tolist() for part in split_ragged(joined, lengths)] == lists


def test_requests_and_options_travel_in_vllms_own_fields():
    request = WorkerRequest("pair", 4, 9, b"plan")
    assert WorkerRequest.from_extra(request.to_extra()) == request
    assert WorkerRequest.from_extra(None) is None
    assert WorkerRequest.from_extra({"another": 1}) is None
    options = WorkerOptions(chunk_rows=2, max_chunk_bytes=5, max_student_size=3, max_cells=4)
    assert WorkerOptions.from_config(options.to_config()) == options


def test_a_failure_drops_what_was_computed():
    tables, plan = a_case(2)
    logits = torch.zeros(plan.num_positions, tables.teacher.size)
    writer = AnswerWriter()
    writer.cached_tokens = 3
    writer.add(marginalize(logits, plan.slice(0, plan.num_positions), tables.on_device("cpu")))
    writer.fail(AnswerStatus.NON_FINITE, 7)
    answer = decode_answer(memoryview(writer.finished()))
    assert (answer.status, answer.position, answer.cached_tokens, answer.chunks) == (AnswerStatus.NON_FINITE, 7, 3, ())


@pytest.mark.parametrize("student_size", [40, 700])
def test_the_largest_pass_is_a_pass(student_size):
    tables = DeviceTables(largest_tables(300, student_size), "cpu")
    chunk = marginalize(torch.zeros(16, 300), largest_slice(16, 9), tables)
    assert (chunk.start, chunk.stop) == (0, 16)
    assert chunk.block.cell_ids.shape == (15, 9)
