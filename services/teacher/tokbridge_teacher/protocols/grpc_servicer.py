"""The calls of the contract over gRPC: messages to the service and back, typed errors to statuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import grpc

from tokbridge.errors import DeadlineExceededError
from tokbridge.registration import StudentRegistration
from tokbridge.registration_reader import RegistrationReader
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.protocols.authentication import CALLER
from tokbridge_teacher.protocols.call_records import grpc_call, grpc_request_id
from tokbridge_teacher.protocols.grpc_errors import Context, typed_errors
from tokbridge_teacher.protocols.grpc_handlers import parsed
from tokbridge_teacher.protocols.grpc_room import leave_place
from tokbridge_teacher.protocols.messages import registration_message, score_messages
from tokbridge_teacher.request_limits import read_in_thread
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.upload_budget import Upload as Room
from tokbridge_teacher.upload_budget import UploadBudget

UPLOAD_TIMEOUT_S = 120.0
"""For a whole registration to arrive."""
LAST_WORDS_S = 5.0
"""For a caller that reads again just after its rows were dropped: it finds a typed error in their place."""


class TeacherServicer(teacher_pb2_grpc.TeacherServicer):
    """The three calls of the contract; in place of a message that cannot be parsed each gets None."""

    def __init__(self, service: TeacherService, uploads: UploadBudget, read_timeout_s: float | None = None) -> None:
        """`read_timeout_s`: how long rows are kept for a caller that takes none; None: its call never ends by that."""
        self._service = service
        self._uploads = uploads
        self._write_timeout_s = None if read_timeout_s is None else read_timeout_s + LAST_WORDS_S

    async def GetTeacher(
        self, request: teacher_pb2.GetTeacherRequest | None, context: Context
    ) -> teacher_pb2.GetTeacherResponse:
        """Who the teacher is."""
        async with typed_errors(context, grpc_request_id(context)):
            parsed(request)
            return self._service.describe().to_proto()

    async def RegisterStudent(
        self, request_iterator: AsyncIterator[teacher_pb2.RegisterStudentRequest | None], context: Context
    ) -> teacher_pb2.RegisterStudentResponse:
        """Read a student's upload, held to the limits, and make it known."""
        request_id, caller = grpc_request_id(context), CALLER.get()
        async with typed_errors(context, request_id):
            observed = self._service.observer.registration(request_id, "grpc", caller)
            with observed, self._uploads.upload() as room:
                reader = await self._read(request_iterator, room)
                registered = await self._service.register(partial(_registration, reader), caller)
            return registration_message(registered)

    async def _read(
        self, messages: AsyncIterator[teacher_pb2.RegisterStudentRequest | None], room: Room
    ) -> RegistrationReader:
        reader = RegistrationReader(self._service.contract_limits)
        try:
            async with asyncio.timeout(UPLOAD_TIMEOUT_S):
                async for received in messages:
                    message = parsed(received)
                    self._uploads.take(room, len(message.chunk))
                    reader.feed(message)
        except TimeoutError:
            raise DeadlineExceededError(f"The upload was not complete after {UPLOAD_TIMEOUT_S:g} seconds.") from None
        return reader

    async def Score(self, request: teacher_pb2.ScoreRequest | None, context: Context) -> None:
        """Stream the rows of one response, then the trailer.

        A write ends when the connection has room for it, so a caller that reads slowly holds back its own stream. A
        caller that leaves, or its deadline, cancels this coroutine.
        """
        request_id = grpc_request_id(context, request.request_id if request else "")
        call, caller = grpc_call(context), CALLER.get()
        async with typed_errors(context, request_id):
            with self._service.observer.reading(request_id, caller, call):
                message = parsed(request)
                score_request = replace(await read_in_thread(message, self._service.limits), request_id=request_id)
            messages = score_messages(
                self._service, message.student_id, score_request, caller, _deadline_s(context), call
            )
            async with aclosing(messages):
                async for part in messages:
                    await self._write(context, part)

    async def _write(self, context: Context, message: bytes) -> None:
        """Hand a message over once the connection has room for it.

        Raises:
            DeadlineExceededError: the caller does not read. Its place among all calls is free; it learns why once it
                reads again.
            asyncio.CancelledError: its connection has ended, before grpc.aio could cancel this coroutine itself.
        """
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await context.write(message)
        except TimeoutError:
            leave_place()
            raise DeadlineExceededError("The rows waited too long for a caller that does not read.") from None
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None


def _registration(reader: RegistrationReader) -> StudentRegistration:
    """The registration that was read; takes CPU time."""
    return StudentRegistration.from_upload(reader.finish())


def _deadline_s(context: Context) -> float | None:
    """The call's deadline on `time.monotonic`; None if it has none."""
    remaining_s = context.time_remaining()
    return None if remaining_s is None else time.monotonic() + remaining_s
