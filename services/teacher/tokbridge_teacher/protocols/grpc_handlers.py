"""The calls of the contract as gRPC handlers that refuse what is no message with a typed error.

The generated code leaves such bytes to grpcio, which ends the call with UNKNOWN: to a client a fault that may pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from tokbridge.errors import InvalidRequestError
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc

SERVICE = teacher_pb2.DESCRIPTOR.services_by_name["Teacher"].full_name

M = TypeVar("M", bound=Message)


def add_teacher(servicer: teacher_pb2_grpc.TeacherServicer, server: grpc.aio.Server) -> None:
    """Register the calls; a servicer gets None in place of a message that cannot be parsed (see `parsed`)."""
    handlers = {
        "GetTeacher": grpc.unary_unary_rpc_method_handler(
            servicer.GetTeacher,
            _or_none(teacher_pb2.GetTeacherRequest),
            teacher_pb2.GetTeacherResponse.SerializeToString,
        ),
        "RegisterStudent": grpc.stream_unary_rpc_method_handler(
            servicer.RegisterStudent,
            _or_none(teacher_pb2.RegisterStudentRequest),
            teacher_pb2.RegisterStudentResponse.SerializeToString,
        ),
        # Answers of `Score` come serialized.
        "Score": grpc.unary_stream_rpc_method_handler(servicer.Score, _or_none(teacher_pb2.ScoreRequest)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def parsed(message: M | None) -> M:
    """The message.

    Raises:
        InvalidRequestError: what came is none.
    """
    if message is None:
        raise InvalidRequestError("The message cannot be parsed.", field="message")
    return message


def _or_none(kind: type[M]) -> Callable[[bytes], M | None]:
    def read(serialized: bytes) -> M | None:
        try:
            return kind.FromString(serialized)
        except DecodeError:
            return None

    return read
