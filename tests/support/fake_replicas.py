"""Several fake replicas of one teacher behind one client."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import grpc
import numpy as np

from support.fake_teacher import TEACHER, FakeTeacher, Fault, expected_rows, make_request, make_student, serving
from tokbridge.client import BreakerPolicy, RetryPolicy, TeacherClient
from tokbridge.targets import TargetRows

QUICK = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
BREAKER = BreakerPolicy(failures=2, open_s=0.05, max_open_s=0.2)
GONE = Fault(status=grpc.StatusCode.UNAVAILABLE)


def named(name: str, **changes) -> FakeTeacher:
    return FakeTeacher(description=replace(TEACHER, instance_id=name, **changes))


def conversation(number: int, num_tokens: int = 12):
    return make_request(num_tokens, messages=[{"role": "user", "content": f"question {number}"}])


@asynccontextmanager
async def connected(*teachers: FakeTeacher, **options):
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(serving(teacher)) for teacher in teachers]
        client = TeacherClient(
            [f"127.0.0.1:{port}" for port in ports], **{"retry": QUICK, "breaker": BREAKER} | options
        )
        await stack.enter_async_context(client)
        await client.connect(make_student())
        yield client


async def conversation_for(client: TeacherClient, teacher: FakeTeacher):
    """A conversation that goes to this replica while all are well."""
    for number in range(100):
        before = len(teacher.scores)
        await client.score(conversation(number))
        if len(teacher.scores) > before:
            return conversation(number)
    raise AssertionError("a replica gets no conversation")


def assert_rows(rows: TargetRows, request) -> None:
    expected = expected_rows(request)
    assert rows.num_rows == expected.num_rows
    np.testing.assert_array_equal(rows.cell_ids, expected.cell_ids)
    np.testing.assert_array_equal(rows.emitted_log_prob, expected.emitted_log_prob)
