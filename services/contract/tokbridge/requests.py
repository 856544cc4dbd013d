"""A request to score one assistant turn, protocol-free, and its wire form.

`from_proto` trusts nothing and raises typed errors. What needs the teacher or the student's vocabulary (ids in range,
bytes spelled, context length) is checked where those are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokbridge import modes
from tokbridge.conversation import (
    ChatMessage,
    dump_json,
    load_objects,
    load_template_arguments,
    message_from_proto,
    message_to_proto,
)
from tokbridge.errors import EmptyResponseError, InvalidRequestError, MalformedConversationError
from tokbridge.json_text import check_utf8
from tokbridge.modes import Routing, Spanning
from tokbridge.v1 import teacher_pb2

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """One assistant turn of a student, with the conversation before it."""

    messages: Sequence[ChatMessage]
    """The turns before the response, in the OpenAI form."""
    response: bytes
    """Content bytes: no stop token."""
    token_ids: NDArray[np.int32]
    """[N], the content ids the student sampled; their bytes are `response`."""
    stop_id: int | None
    """The stop token that ended the response; None: it was cut."""
    tools: Sequence[Mapping[str, Any]] = ()
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    student_tail: str = ""
    """g_s: the student's own generation prompt from its thinking opening on (spec §3.2)."""
    routing: Routing = Routing.GREEDY
    spanning: Spanning = Spanning.REALIZED
    top_k: int = 0
    """Cells kept a row at most; 0: the service's default."""
    mass: float = 0.0
    """Cells are kept until they cover this mass; 0: the service's default; 1: no limit."""
    request_id: str = ""
    """Echoed in errors and logs; empty: the client chooses one."""

    @property
    def num_rows(self) -> int:
        """Rows that the answer has: one a token, and one for the stop."""
        return len(self.token_ids) + (self.stop_id is not None)

    def to_proto(self, student_id: str) -> teacher_pb2.ScoreRequest:
        """Wire form.

        Raises:
            MalformedConversationError, InvalidRequestError, UnsupportedModeError, EmptyResponseError: as `from_proto`.
        """
        try:
            check_utf8(self.student_tail)
        except ValueError as error:
            raise InvalidRequestError(f"`student_tail` holds a {error}", field="student_tail") from error
        message = teacher_pb2.ScoreRequest(
            student_id=student_id,
            messages=[message_to_proto(message, index) for index, message in enumerate(self.messages)],
            tools_json=dump_json(self.tools, "tools"),
            template_arguments_json=dump_json(self.template_arguments, "template_arguments"),
            student_generation_prompt_tail=self.student_tail,
            response=self.response,
            token_ids=np.asarray(self.token_ids, "<i4").tobytes(),
            stop_id=self.stop_id,
            routing=modes.routing_to_proto(Routing(self.routing)),
            spanning=modes.spanning_to_proto(Spanning(self.spanning)),
            top_k=self.top_k,
            mass=self.mass,
            request_id=self.request_id,
        )
        _check(message)
        return message

    @classmethod
    def from_proto(cls, message: teacher_pb2.ScoreRequest) -> ScoreRequest:
        """Unpack and validate.

        Raises:
            MalformedConversationError: no messages, or one that is not well-formed.
            InvalidRequestError: a field is malformed.
            UnsupportedModeError: a mode or a combination of modes that is not offered.
            EmptyResponseError: neither content nor a stop token.
        """
        _check(message)
        return cls(
            messages=[message_from_proto(packed, index) for index, packed in enumerate(message.messages)],
            response=message.response,
            token_ids=np.frombuffer(message.token_ids, "<i4"),
            stop_id=message.stop_id if message.HasField("stop_id") else None,
            tools=load_objects(message.tools_json, "tools_json"),
            template_arguments=load_template_arguments(message.template_arguments_json, "template_arguments"),
            student_tail=message.student_generation_prompt_tail,
            routing=modes.routing_from_proto(message.routing),
            spanning=modes.spanning_from_proto(message.spanning),
            top_k=message.top_k,
            mass=message.mass,
            request_id=message.request_id,
        )


def split_at_stop(ids: NDArray[np.integer], stop_ids: frozenset[int]) -> tuple[NDArray[np.int32], int | None]:
    """Cut generated ids at the first stop token.

    Returns:
        The content ids before it, and it; None where there is no stop token: the response was cut.
    """
    for position, token_id in enumerate(ids.tolist()):
        if token_id in stop_ids:
            return ids[:position].astype(np.int32), token_id
    return ids.astype(np.int32), None


def _check(message: teacher_pb2.ScoreRequest) -> None:
    if not message.messages:
        raise MalformedConversationError("the conversation has no messages")
    modes.check_modes(modes.routing_from_proto(message.routing), modes.spanning_from_proto(message.spanning))
    if message.request_id and not REQUEST_ID_PATTERN.fullmatch(message.request_id):
        raise InvalidRequestError(f"`request_id` does not match {REQUEST_ID_PATTERN.pattern}", field="request_id")
    if len(message.token_ids) % 4:
        raise InvalidRequestError("`token_ids` is not a whole number of int32", field="token_ids")
    if not (math.isfinite(message.mass) and 0 <= message.mass <= 1):
        raise InvalidRequestError("`mass` is not between 0 and 1", field="mass")
    if not message.token_ids and not message.HasField("stop_id"):
        raise EmptyResponseError("the response has neither content nor a stop token")
