"""The client without an event loop, against a real gRPC server that runs in another thread."""

import asyncio
import threading
import time
from collections import deque

import pytest

from support.fake_teacher import TEACHER, FakeTeacher, Fault, make_request, make_student, serving
from tokbridge.client import BlockingTeacherClient, RetryPolicy, TeacherClient
from tokbridge.errors import ChatTemplateError, OverloadedError, RequestCancelledError


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


async def test_scores_come_in_the_order_of_their_requests():
    requests = [make_request(n) for n in (3, 9, 1)]

    def use(port: int) -> None:
        with BlockingTeacherClient(TeacherClient(f"127.0.0.1:{port}")) as teacher:
            assert teacher.connect(make_student()) == TEACHER
            assert teacher.score(requests[0]).rows.num_rows == 4
            assert [result.rows.num_rows for result in teacher.score_all(requests)] == [4, 10, 2]
            assert teacher.score_all([]) == []
            assert teacher.client.statistics.finished_calls == 4
        assert "tokbridge-client" not in threads()

    async with serving(FakeTeacher()) as port:
        await asyncio.to_thread(use, port)


async def test_the_first_failure_ends_the_others():
    fake = FakeTeacher(script=deque([Fault(hang=True), Fault(error=ChatTemplateError("no"))]))

    def use(port: int) -> None:
        with BlockingTeacherClient(TeacherClient(f"127.0.0.1:{port}", retry=RetryPolicy())) as teacher:
            teacher.connect(make_student())
            with pytest.raises(ChatTemplateError):
                teacher.score_all([make_request(), make_request()])

    async with serving(fake) as port:
        await asyncio.to_thread(use, port)
        await asyncio.wait_for(fake.cancelled.wait(), 10)


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(error=OverloadedError("full"))], ids=["hangs", "waits"])
async def test_closing_ends_the_calls_of_other_threads(fault):
    fake = FakeTeacher(script=deque([fault]))
    outcomes = []

    def score(teacher: BlockingTeacherClient) -> None:
        with pytest.raises(RequestCancelledError) as caught:
            teacher.score(make_request())
        outcomes.append(caught.value)

    def use(port: int) -> None:
        slow = RetryPolicy(initial_backoff_s=3600.0, max_backoff_s=3600.0)
        teacher = BlockingTeacherClient(TeacherClient(f"127.0.0.1:{port}", retry=slow, timeout_s=36_000))
        teacher.connect(make_student())
        caller = threading.Thread(target=score, args=(teacher,), daemon=True)
        caller.start()
        while not fake.scores or (fault.error and not teacher.client.statistics.retries):
            time.sleep(0.01)
        teacher.close()
        caller.join(10)

    async with serving(fake) as port:
        await asyncio.to_thread(use, port)
    assert len(outcomes) == 1


def test_a_closed_client_says_so():
    teacher = BlockingTeacherClient(TeacherClient("127.0.0.1:1"))
    teacher.close()
    teacher.close()
    with pytest.raises(RequestCancelledError):
        teacher.score(make_request())
