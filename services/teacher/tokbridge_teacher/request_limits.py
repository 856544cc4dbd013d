"""A score request's sizes, checked on the message as it came: before its JSON is read and anything is copied."""

from __future__ import annotations

import asyncio

from tokbridge.errors import LimitExceededError
from tokbridge.requests import ScoreRequest
from tokbridge.v1 import teacher_pb2
from tokbridge_teacher.settings import RequestLimits

_BYTES_AN_ID = 4
_SMALL_BYTES = 1 << 16
"""Read where it stands: a thread costs more."""


async def read_in_thread(message: teacher_pb2.ScoreRequest, limits: RequestLimits) -> ScoreRequest:
    """As `read_score_request`, but a large message in a thread, so that the event loop goes on."""
    if message.ByteSize() <= _SMALL_BYTES:
        return read_score_request(message, limits)
    return await asyncio.to_thread(read_score_request, message, limits)


def read_score_request(message: teacher_pb2.ScoreRequest, limits: RequestLimits) -> ScoreRequest:
    """The request in a message, whichever protocol brought it.

    Raises:
        LimitExceededError: it is larger than `limits`.
        TokbridgeError: as `ScoreRequest.from_proto`.
    """
    check_at_most("max_top_k", message.top_k, limits.max_top_k)
    check_at_most("max_messages", len(message.messages), limits.max_messages)
    check_at_most("max_response_bytes", len(message.response), limits.max_response_bytes)
    # A content token has at least one byte.
    check_at_most("max_response_bytes", len(message.token_ids) // _BYTES_AN_ID, limits.max_response_bytes)
    check_at_most("max_conversation_bytes", _conversation_bytes(message), limits.max_conversation_bytes)
    request = ScoreRequest.from_proto(message)
    check_at_most("max_tools", len(request.tools), limits.max_tools)
    check_at_most("max_template_arguments", len(request.template_arguments), limits.max_template_arguments)
    return request


def check_at_most(name: str, value: int, limit: int) -> None:
    """Raise `LimitExceededError` if `value` is over the limit called `name`."""
    if value > limit:
        raise LimitExceededError(f"{name} is {limit}; the request has {value}.", name=name, value=value, limit=limit)


def _conversation_bytes(message: teacher_pb2.ScoreRequest) -> int:
    """Everything that the template sees, as UTF-8, field numbers and lengths of the messages included."""
    texts = (message.tools_json, message.template_arguments_json, message.student_generation_prompt_tail)
    return sum(turn.ByteSize() for turn in message.messages) + sum(len(text.encode()) for text in texts)
