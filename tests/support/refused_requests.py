"""Every request that a teacher service must refuse with a typed error, with the error it must give.

Used on both protocols. The service under test has a context of 600 tokens, at most 2,000 response bytes, 1,500
conversation bytes and a top-k of 100.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from support.requests_for import request_for
from tokbridge.errors import ErrorCode
from tokbridge.requests import ScoreRequest
from tokbridge.tokenizer_profile import TokenizerProfile

UNKNOWN_STUDENT_ID = "0" * 64


@dataclass(frozen=True)
class Refused:
    """One case."""

    name: str
    code: ErrorCode
    build: Callable[[TokenizerProfile], ScoreRequest]
    details: dict[str, Any]
    """Details that the error must have."""
    student_known: bool = True
    says: str = ""
    """Text that the message must hold."""


def _misspelled(profile: TokenizerProfile) -> ScoreRequest:
    request = request_for(profile)
    return replace(request, response=request.response[:10] + b"!" + request.response[11:])


def _out_of_range(profile: TokenizerProfile) -> ScoreRequest:
    request = request_for(profile)
    ids = request.token_ids.copy()
    ids[3] = 99_999
    return replace(request, token_ids=ids)


def _negative_id(profile: TokenizerProfile) -> ScoreRequest:
    request = request_for(profile)
    return replace(request, token_ids=np.append(request.token_ids, np.int32(-1)))


def _content(text: str) -> Callable[[TokenizerProfile], ScoreRequest]:
    return lambda profile: request_for(profile, messages=[{"role": "user", "content": text}])


def _control_id(profile: TokenizerProfile) -> int:
    """A control token that ends no turn."""
    return next(id_ for id_ in sorted(profile.control_ids.values()) if id_ not in profile.stop_ids)


REFUSED = [
    Refused("unknown student", ErrorCode.UNKNOWN_STUDENT, request_for, {"student_id": UNKNOWN_STUDENT_ID}, False),
    Refused("ids do not spell", ErrorCode.TOKENS_DO_NOT_SPELL_RESPONSE, _misspelled, {"offset": 10}),
    Refused("id out of range", ErrorCode.TOKEN_ID_OUT_OF_RANGE, _out_of_range, {"token_id": 99_999, "index": 3}),
    Refused("negative id", ErrorCode.TOKEN_ID_OUT_OF_RANGE, _negative_id, {"token_id": -1}),
    Refused(
        "response past the context",
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        lambda profile: request_for(profile, "zq" * 900),
        {"limit": 600},
    ),
    Refused("prompt past the context", ErrorCode.CONTEXT_LENGTH_EXCEEDED, _content("zq" * 600), {"limit": 600}),
    Refused(
        "response too large",
        ErrorCode.LIMIT_EXCEEDED,
        lambda profile: request_for(profile, "a" * 2001),
        {"name": "max_response_bytes", "limit": 2000},
    ),
    Refused(
        "conversation too large", ErrorCode.LIMIT_EXCEEDED, _content("a" * 1600), {"name": "max_conversation_bytes"}
    ),
    Refused(
        "top-k too large",
        ErrorCode.LIMIT_EXCEEDED,
        lambda profile: request_for(profile, top_k=101),
        {"name": "max_top_k", "value": 101, "limit": 100},
    ),
    Refused("nothing in it", ErrorCode.EMPTY_RESPONSE, lambda profile: request_for(profile, "", stop_id=None), {}),
    Refused(
        "stop token outside the stop set",
        ErrorCode.STOP_TOKEN_NOT_IN_STOP_SET,
        lambda profile: request_for(profile, stop_id=_control_id(profile)),
        {},
    ),
    Refused("no messages", ErrorCode.MALFORMED_CONVERSATION, lambda profile: request_for(profile, messages=[]), {}),
    Refused(
        "a role that is none",
        ErrorCode.MALFORMED_CONVERSATION,
        lambda profile: request_for(profile, messages=[{"role": "no role!", "content": "x"}]),
        {},
    ),
    Refused(
        "the template refuses",
        ErrorCode.CHAT_TEMPLATE_FAILED,
        lambda profile: request_for(profile, messages=[{"role": "narrator", "content": "x"}]),
        {},
        says="unknown role narrator",
    ),
    Refused(
        "greedy with lookahead",
        ErrorCode.UNSUPPORTED_MODE,
        lambda profile: request_for(profile, spanning="lookahead"),
        {},
    ),
    Refused(
        "template arguments that are not the caller's",
        ErrorCode.INVALID_REQUEST,
        lambda profile: request_for(profile, template_arguments={"chat_template": "{{ 1 }}"}),
        {},
    ),
    Refused("mass above one", ErrorCode.INVALID_REQUEST, lambda profile: request_for(profile, mass=1.5), {}),
]
