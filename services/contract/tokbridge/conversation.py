"""Chat messages in the OpenAI form to and from the `Message` message; tool calls travel as JSON.

The module checks form only; what a chat template makes of a conversation is the teacher's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokbridge.errors import InvalidRequestError, MalformedConversationError
from tokbridge.json_text import check_utf8, compact_json, load_json
from tokbridge.template_arguments import check_arguments
from tokbridge.v1 import teacher_pb2

ChatMessage = Mapping[str, Any]
"""`role`, `content` (text or None) and, where they apply, `tool_calls`, `tool_call_id`, `name`, `reasoning_content`."""

_OPTIONAL_TEXTS = ("content", "reasoning_content")
_PLAIN_TEXTS = ("tool_call_id", "name")
_KEYS = {"role", "tool_calls", *_OPTIONAL_TEXTS, *_PLAIN_TEXTS}
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


def message_to_proto(message: ChatMessage, index: int) -> teacher_pb2.Message:
    """Pack message number `index` of a conversation.

    Raises:
        MalformedConversationError: an unknown key, a value of the wrong type, or one that UTF-8 or JSON cannot carry.
    """
    unknown = set(message) - _KEYS
    if unknown:
        raise _malformed(index, f"has unknown keys: {', '.join(sorted(map(str, unknown)))}")
    texts = {name: message.get(name) for name in ("role", *_OPTIONAL_TEXTS, *_PLAIN_TEXTS)}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise _malformed(index, f"has a `{name}` that is {type(text).__name__}, not text")
    tool_calls = message.get("tool_calls")
    try:
        check_utf8("".join(text for text in texts.values() if text))
        tool_calls_json = compact_json(tool_calls) if tool_calls else ""
    except (TypeError, ValueError) as error:
        raise _malformed(index, f"does not go onto the wire: {error}") from error
    packed = teacher_pb2.Message(**texts, tool_calls_json=tool_calls_json)
    message_from_proto(packed, index)
    return packed


def message_from_proto(packed: teacher_pb2.Message, index: int) -> dict[str, Any]:
    """Unpack message number `index`; `content` is always there, other keys where they are set.

    Raises:
        MalformedConversationError: the role or the tool calls are not well-formed.
    """
    if not _ROLE.fullmatch(packed.role):
        raise _malformed(index, "has no valid role")
    message: dict[str, Any] = {"role": packed.role, "content": packed.content if packed.HasField("content") else None}
    if packed.HasField("reasoning_content"):
        message["reasoning_content"] = packed.reasoning_content
    message |= {name: text for name in _PLAIN_TEXTS if (text := getattr(packed, name))}
    if packed.tool_calls_json:
        try:
            message["tool_calls"] = load_objects(packed.tool_calls_json, "tool_calls_json")
        except InvalidRequestError as error:
            raise _malformed(index, f"is refused: {error.message}") from error
    return message


def dump_json(value: Sequence[Any] | Mapping[str, Any] | None, field: str) -> str:
    """JSON of tools or template arguments; empty when there are none.

    Raises:
        InvalidRequestError: the value does not go into JSON.
    """
    try:
        return compact_json(value) if value else ""
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"`{field}` does not go into JSON: {error}", field=field) from error


def load_objects(text: str, field: str) -> list[dict[str, Any]]:
    """A JSON array of objects; empty text is an empty list.

    Raises:
        InvalidRequestError: the text is anything else.
    """
    value = _load(text, field) if text else []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidRequestError(f"`{field}` is not a JSON array of objects", field=field)
    return value


def load_template_arguments(text: str, field: str) -> dict[str, Any]:
    """A JSON object of extra template arguments; empty text is an empty object.

    Raises:
        InvalidRequestError: the text is anything else, or sets what is not the caller's to set.
    """
    value = _load(text, field) if text else {}
    if not isinstance(value, dict):
        raise InvalidRequestError(f"`{field}` is not a JSON object", field=field)
    check_arguments(value, field)
    return value


def _load(text: str, field: str) -> Any:
    try:
        return load_json(text)
    except ValueError as error:
        raise InvalidRequestError(f"`{field}` is not JSON that can be taken: {error}", field=field) from error


def _malformed(index: int, what: str) -> MalformedConversationError:
    return MalformedConversationError(f"message {index} {what}", message_index=index)
