"""SIGKILL in the middle of a response: the client's retry reaches the service that was started in its place."""

import asyncio

import numpy as np
import pytest

from support.requests_for import request_for
from support.teacher_process import start_teacher
from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge.client import StudentRegistration, TeacherClient
from tokbridge.tokenizer_profile import load_tokenizer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SLOW = ("--chunk-rows", "1", "--piece-tokens", "4")
"""A response takes many passes, so that it is under way when the service is killed."""


async def test_the_rows_after_a_kill_are_those_of_an_undisturbed_run(tmp_path):
    folder = save_tiny_model(TINY_TEACHER, tmp_path / "teacher")
    student = load_tokenizer(save_tiny_model(TINY_STUDENT, tmp_path / "student"))
    requests = [request_for(student, f"word {number} " * 60, request_id=f"r{number}") for number in range(8)]
    first = start_teacher(folder, tmp_path / "first.log", *SLOW)
    second = None
    try:
        async with TeacherClient(first.grpc) as client:
            instance = (await client.connect(StudentRegistration.from_profile(student))).instance_id
            alone = (await client.score(requests[0])).rows
            together = [result.rows for result in await asyncio.gather(*map(client.score, requests))]
            rows_before = client.statistics.rows

            stream = client.stream(requests[0])
            parts = [await anext(stream)]
            others = [asyncio.create_task(client.score(request)) for request in requests[1:]]
            first.kill()
            second = await asyncio.to_thread(
                start_teacher, folder, tmp_path / "second.log", *SLOW, grpc_port=first.grpc_port
            )
            parts += [rows async for rows in stream]
            results = [result.rows for result in await asyncio.gather(*others)]
            again = (await client.score(requests[0])).rows
            statistics = client.statistics
            assert client.teacher.instance_id != instance
    finally:
        first.kill()
        if second is not None:
            second.kill()

    assert_equal(alone, again)  # identical batches: identical bits
    streamed = type(alone).concatenate(parts)
    for expected, rows in zip(together, [streamed, *results], strict=True):
        assert_close(expected, rows)
    assert (statistics.registrations, statistics.probes) == (2, 2)
    assert statistics.retries["teacher_unavailable"] >= len(requests)
    assert statistics.failed_calls == {}
    expected_rows = sum(request.num_rows for request in requests) + requests[0].num_rows
    assert statistics.rows - rows_before == expected_rows


def assert_equal(expected, rows):
    for name, array in vars(expected).items():
        np.testing.assert_array_equal(getattr(rows, name), array, err_msg=name)


def assert_close(expected, rows):
    """Within 1e-5 where the wire has float32; cells are float16 there, and a last bit may round the other way."""
    np.testing.assert_array_equal(rows.cases, expected.cases)
    for name in ("emitted_log_prob", "residual_unmapped", "residual_control", "residual_truncated"):
        np.testing.assert_allclose(getattr(rows, name), getattr(expected, name), atol=1e-5, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(by_token(rows), by_token(expected), atol=1e-3)


def by_token(rows):
    """Probabilities of the cells in the order of their tokens: equal masses may change places within a row."""
    row_of_cell = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_offsets))
    order = np.lexsort((rows.cell_ids, row_of_cell))
    return np.exp(rows.cell_log_probs[order])
