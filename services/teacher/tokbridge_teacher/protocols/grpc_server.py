"""The gRPC protocol, thin: messages to the service and back, typed errors to statuses, health and reflection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from tokbridge.error_mapping import ERROR_TRAILER_KEY, detail_of
from tokbridge.errors import ErrorCode, TokbridgeError
from tokbridge.registration import StudentRegistration
from tokbridge.registration_reader import RegistrationReader
from tokbridge.requests import ScoreRequest
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.faults import internal_faults, valid_request_id
from tokbridge_teacher.protocols.messages import registration_message, score_messages
from tokbridge_teacher.service import TeacherService

_SERVICE = teacher_pb2.DESCRIPTOR.services_by_name["Teacher"].full_name

STATUS_BY_CODE: dict[ErrorCode, grpc.StatusCode] = {
    ErrorCode.UNKNOWN_STUDENT: grpc.StatusCode.NOT_FOUND,
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.LIMIT_EXCEEDED: grpc.StatusCode.OUT_OF_RANGE,
    ErrorCode.UNSUPPORTED_MODE: grpc.StatusCode.UNIMPLEMENTED,
    ErrorCode.UNSUPPORTED_TEMPLATE: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorCode.NON_FINITE_LOGITS: grpc.StatusCode.DATA_LOSS,
    ErrorCode.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorCode.SHUTTING_DOWN: grpc.StatusCode.UNAVAILABLE,
    ErrorCode.DEADLINE_EXCEEDED: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorCode.CANCELLED: grpc.StatusCode.CANCELLED,
    ErrorCode.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorCode.SELF_TEST_FAILED: grpc.StatusCode.INTERNAL,
}
"""Status of every code that is not the caller's argument; all others are INVALID_ARGUMENT."""

Context = grpc.aio.ServicerContext


class TeacherServicer(teacher_pb2_grpc.TeacherServicer):
    """The three calls of the contract."""

    def __init__(self, service: TeacherService) -> None:
        self._service = service

    async def GetTeacher(
        self, request: teacher_pb2.GetTeacherRequest, context: Context
    ) -> teacher_pb2.GetTeacherResponse:
        """Who the teacher is."""
        return self._service.describe().to_proto()

    async def RegisterStudent(
        self, request_iterator: AsyncIterator[teacher_pb2.RegisterStudentRequest], context: Context
    ) -> teacher_pb2.RegisterStudentResponse:
        """Read a student's upload, held to the limits, and make it known."""
        async with _typed_errors(context, valid_request_id("")):
            reader = RegistrationReader(self._service.contract_limits)
            async for message in request_iterator:
                reader.feed(message)
            registered = await self._service.register(partial(StudentRegistration.from_upload, reader.finish()))
            return registration_message(registered)

    async def Score(
        self, request: teacher_pb2.ScoreRequest, context: Context
    ) -> AsyncGenerator[teacher_pb2.ScoreResponse]:
        """Stream the rows of one response, then the trailer."""
        request_id = valid_request_id(request.request_id)
        async with _typed_errors(context, request_id):
            score_request = replace(ScoreRequest.from_proto(request), request_id=request_id)
            async with aclosing(score_messages(self._service, request.student_id, score_request)) as messages:
                async for message in messages:
                    yield message


class GrpcServer:
    """One listening gRPC server with health and reflection."""

    def __init__(self, service: TeacherService, *, host: str, port: int, max_message_bytes: int) -> None:
        options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options)
        self._health = HealthServicer()
        teacher_pb2_grpc.add_TeacherServicer_to_server(TeacherServicer(service), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.port = self._server.add_insecure_port(f"{host}:{port}")

    async def start(self) -> None:
        """Listen; health says NOT_SERVING until `set_serving`."""
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """What the health service answers for the process and for the teacher."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", _SERVICE):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Take no more calls and let running ones finish for `grace_s` seconds."""
        await self._server.stop(grace_s)


@asynccontextmanager
async def _typed_errors(context: Context, request_id: str) -> AsyncIterator[None]:
    """End the call with the status of a typed error and its serialized detail in the trailing metadata."""
    try:
        with internal_faults(request_id):
            yield
    except TokbridgeError as error:
        detail: Any = detail_of(error, request_id).SerializeToString()
        status = STATUS_BY_CODE.get(error.code, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(status, error.message, trailing_metadata=((ERROR_TRAILER_KEY, detail),))
