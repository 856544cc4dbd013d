"""Messages on their way into a chat template, and the check of what came out (spec §3.1).

Plain functions over the OpenAI form of a conversation. The module does not render.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tokbridge.errors import ContentDroppedByTemplateError, MalformedConversationError
from tokbridge.json_text import load_json

Message = dict[str, Any]
T = TypeVar("T")

TOOL_ROLES = ("tool", "observation", "ipython")
"""Names of one role among chat templates; the first is the standard one."""
_PRIVATE_USE = range(0xE000, 0xF900)


def prepare_messages(messages: Sequence[Message], source: str, *, arguments_as_mappings: bool) -> list[Message]:
    """Copies of `messages` in the form that the template with this source wants; null content becomes empty.

    Raises:
        MalformedConversationError: a message is of the wrong form; names its index.
    """
    if not messages:
        raise MalformedConversationError("the conversation has no message")
    role = _tool_role(source)
    return [_prepare(message, index, role, arguments_as_mappings) for index, message in enumerate(messages)]


def _prepare(message: Message, index: int, tool_role: str, arguments_as_mappings: bool) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or not message["role"]:
        raise _malformed(index, "is not an object with a role")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise _malformed(index, f"has content that is {type(content).__name__}, not text")
    role = tool_role if message["role"] == "tool" else message["role"]
    prepared = {**message, "role": role, "content": content or ""}
    calls = prepared.pop("tool_calls", None)
    if calls:
        prepared["tool_calls"] = [_prepare_call(call, index, arguments_as_mappings) for call in _list(calls, index)]
    return prepared


def _list(calls: object, index: int) -> list[Any]:
    if not isinstance(calls, list):
        raise _malformed(index, "has tool calls that are not a list")
    return calls


def _prepare_call(call: object, index: int, as_mapping: bool) -> dict[str, Any]:
    """A tool call, its arguments as a mapping or as JSON text."""
    if not isinstance(call, Mapping):
        raise _malformed(index, "has a tool call that is not an object")
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _malformed(index, "has a tool call without a function name")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str) and as_mapping:
        arguments = _parse_arguments(arguments, index)
    elif not isinstance(arguments, str) and not as_mapping:
        arguments = json.dumps(arguments, ensure_ascii=False)
    prepared = {**function, "arguments": arguments}
    return {**call, "function": prepared} if "function" in call else prepared


def _parse_arguments(text: str, index: int) -> dict[str, Any]:
    try:
        arguments = load_json(text or "{}")
    except ValueError as error:
        raise _malformed(index, f"has tool-call arguments that are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise _malformed(index, "has tool-call arguments that are not a JSON object")
    return arguments


def _tool_role(source: str) -> str:
    """The first name of the tool role that the template compares with; `tool` if it knows none."""
    return next((role for role in TOOL_ROLES if re.search(rf"""["']{role}["']""", source)), TOOL_ROLES[0])


def guarded(value: T, pattern: re.Pattern[str], guard: str) -> T:
    """A copy of JSON data with `guard` after the first character of every match of `pattern` in a text or a key."""

    def copy_of(item: Any) -> Any:
        if isinstance(item, str):
            return pattern.sub(lambda match: match[0][0] + guard + match[0][1:], item)
        if isinstance(item, Mapping):
            return {copy_of(key): copy_of(inner) for key, inner in item.items()}
        return [copy_of(inner) for inner in item] if isinstance(item, list) else item

    return copy_of(value)


def unused_character(value: object) -> str:
    """A private-use character that stands nowhere in JSON data."""
    used = set(json.dumps(value, ensure_ascii=False))
    free = next((chr(code) for code in _PRIVATE_USE if chr(code) not in used), None)
    if free is None:
        raise MalformedConversationError("the conversation uses every private-use character")
    return free


def check_nothing_dropped(messages: Sequence[Message], text: str) -> None:
    """Check that every message stands in the rendered `text`, as it is or as a JSON string. Of an assistant's message
    templates cut the thinking, which is theirs to do; a system message that a template has no place for is lost.

    Raises:
        ContentDroppedByTemplateError: one does not; names its index.
    """
    for index, message in enumerate(messages):
        content = message["content"].strip()
        if message["role"] == "assistant" or content in text:
            continue
        if not any(json.dumps(content, ensure_ascii=ascii)[1:-1] in text for ascii in (False, True)):
            raise ContentDroppedByTemplateError(
                f"the chat template drops text of message {index} (role {message['role']})", message_index=index
            )


def _malformed(index: int, what: str) -> MalformedConversationError:
    return MalformedConversationError(f"message {index} {what}", message_index=index)
