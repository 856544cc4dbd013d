"""Length-delimited protobuf over HTTP: several messages in one body, each behind its length as a varint."""

from __future__ import annotations

import io

from fastapi import Request
from google.protobuf import proto
from google.protobuf.message import DecodeError

from tokbridge.description import Limits
from tokbridge.errors import InvalidRequestError
from tokbridge.registration_reader import RegistrationReader, Upload
from tokbridge.v1 import teacher_pb2

MEDIA_TYPE = "application/x-protobuf"


def sends_protobuf(request: Request) -> bool:
    """Whether the body is protobuf."""
    return request.headers.get("content-type", "").split(";")[0].strip() == MEDIA_TYPE


def wants_protobuf(request: Request) -> bool:
    """Whether the answer is to be protobuf."""
    return MEDIA_TYPE in request.headers.get("accept", "")


def parse_score_request(body: bytes) -> teacher_pb2.ScoreRequest:
    """The one message of a `/v1/score` body, without a length.

    Raises:
        InvalidRequestError: it is not that message.
    """
    try:
        return teacher_pb2.ScoreRequest.FromString(body)
    except DecodeError as error:
        raise InvalidRequestError("The body is not a ScoreRequest.", field="body") from error


def parse_upload(body: bytes, limits: Limits) -> Upload:
    """The messages of a `RegisterStudent` stream in one body.

    Raises:
        InvalidRequestError, LimitExceededError: as `RegistrationReader`, or the body is not such messages.
    """
    reader = RegistrationReader(limits)
    stream = io.BytesIO(body)
    try:
        while message := proto.parse_length_prefixed(teacher_pb2.RegisterStudentRequest, stream):
            reader.feed(message)
    except (DecodeError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError("The body is not a stream of RegisterStudentRequest.", field="body") from error
    return reader.finish()


def length_delimited(message: bytes) -> bytes:
    """A serialized message behind its length."""
    length, rest = bytearray(), len(message)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return bytes(length) + message
