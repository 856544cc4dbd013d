"""The standing of one client with one teacher: handshake done, student registered.

Any number of calls may need it at once and any of them may find it broken; the work is done once, by one task that all
of them await. A teacher that comes back is compared with the one it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc.aio

from tokbridge.client.channel import error_of_call
from tokbridge.client.expectation import TeacherExpectation, check_same_teacher, check_student_fits
from tokbridge.client.statistics import ClientStatistics
from tokbridge.description import TeacherDescription
from tokbridge.errors import CorruptStreamError, DeadlineExceededError, RequestCancelledError, TeacherUnavailableError
from tokbridge.registration import StudentRegistration
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc

HANDSHAKE_TIMEOUT_S = 30.0
REGISTRATION_TIMEOUT_S = 300.0
"""Includes the upload and compiling the pair's routing."""

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Standing:
    """A finished handshake. Calls name the one they used when they report it broken."""

    teacher: TeacherDescription
    registration: teacher_pb2.RegisterStudentResponse


class Session:
    """Makes and remakes the standing."""

    def __init__(
        self,
        stub: teacher_pb2_grpc.TeacherStub,
        student: StudentRegistration,
        expectation: TeacherExpectation,
        metadata: Metadata,
        statistics: ClientStatistics,
    ) -> None:
        self._stub = stub
        self._student = student
        self._expectation = expectation
        self._metadata = tuple(metadata)
        self._task: asyncio.Task[Standing] | None = None
        self._last: Standing | None = None
        """The last one that stood, broken or not."""
        self._forgotten = False
        self._closed = False
        self._statistics = statistics

    @property
    def standing(self) -> Standing:
        """The last standing, which may be broken by now.

        Raises:
            TeacherUnavailableError: there has been none.
        """
        if self._last is None:
            raise TeacherUnavailableError("the client has not reached its teacher yet")
        return self._last

    async def ready(self, timeout_s: float) -> Standing:
        """The standing, made if there is none.

        Raises:
            TimeoutError: not within `timeout_s`; the work goes on for whoever else waits.
            RequestCancelledError: the session was closed.
            TokbridgeError: what the handshake or the registration met.
        """
        self._check_open()
        task = self._task
        if task is None or (task.done() and task.exception() is not None):
            task = self._task = asyncio.create_task(self._establish())
            task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=timeout_s)  # leaves the task alone when this caller is cancelled
        self._check_open()
        if not task.done():
            raise TimeoutError
        return task.result()

    def broken(self, standing: Standing, *, forgotten: bool) -> None:
        """A call on `standing` failed: ask the teacher again who it is, and register again if it has `forgotten` us.

        A report about an earlier standing than the last speaks of what is mended already.
        """
        if standing is self._last:
            self._forgotten = self._forgotten or forgotten
            if self._task is not None and self._task.done():
                self._task = None

    async def close(self) -> None:
        """Stop work in progress; nothing is made any more."""
        self._closed = True
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    def _check_open(self) -> None:
        if self._closed:
            raise RequestCancelledError("the client was closed during the call")

    async def _establish(self) -> Standing:
        try:
            teacher = await self._greet()
            previous = self._last
            known = previous is not None and previous.teacher.instance_id == teacher.instance_id and not self._forgotten
            registration = previous.registration if previous is not None and known else await self._register()
        except grpc.aio.AioRpcError as failure:
            error = error_of_call(failure)
            if isinstance(error, DeadlineExceededError):  # ours, not the caller's: another try may find it awake
                error = TeacherUnavailableError("the teacher accepts connections but does not answer")
            raise error from failure
        self._forgotten = False
        self._last = Standing(teacher, registration)
        return self._last

    async def _greet(self) -> TeacherDescription:
        self._statistics.handshakes += 1
        answer = await self._stub.GetTeacher(
            teacher_pb2.GetTeacherRequest(), timeout=HANDSHAKE_TIMEOUT_S, metadata=self._metadata
        )
        teacher = TeacherDescription.from_proto(answer)
        self._expectation.check(teacher)
        if self._last is not None:
            check_same_teacher(self._last.teacher, teacher)
        check_student_fits(self._student, teacher)
        return teacher

    async def _register(self) -> teacher_pb2.RegisterStudentResponse:
        self._statistics.registrations += 1
        messages = await asyncio.to_thread(list, self._student.to_messages())  # compresses tens of megabytes
        answer = await self._stub.RegisterStudent(messages, timeout=REGISTRATION_TIMEOUT_S, metadata=self._metadata)
        if answer.student_id != self._student.student_id:
            raise CorruptStreamError("the teacher registered another student than the one sent", field="student_id")
        return answer


def _retrieve(task: asyncio.Task[Standing]) -> None:
    """Nobody may be left to ask for the exception; every waiter that is there gets it all the same."""
    if not task.cancelled():
        task.exception()
