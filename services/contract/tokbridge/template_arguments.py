"""Arguments that a caller gives to a chat template, and those that are not a caller's to give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokbridge.errors import InvalidRequestError

RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversations",
        "documents",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
        "trust_remote_code",
    }
)
"""Set by who renders, or a way around the teacher's own template."""


def check_arguments(arguments: Mapping[str, Any], field: str) -> None:
    """Check that none is reserved.

    Raises:
        InvalidRequestError: names those that are.
    """
    reserved = RESERVED & arguments.keys()
    if reserved:
        raise InvalidRequestError(f"`{field}` must not set {', '.join(sorted(reserved))}", field=field)
