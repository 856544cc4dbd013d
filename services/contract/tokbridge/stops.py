"""Stop sets: the ids that end an assistant turn (spec §3, "Stop sets").

Their sources are the tokenizer's eos, the eos ids of `generation_config.json` and of `config.json`, and what the chat
template puts after an assistant turn, found by rendering probes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokbridge.chat_template import ChatTemplate
from tokbridge.errors import ChatTemplateError, ContentDroppedByTemplateError, UnsupportedTemplateError
from tokbridge.messages import TOOL_ROLES, Message

_TURN, _CALL, _NEXT = "turn text 7Q", "call text 7Q", "next text 7Q"
_USER: Message = {"role": "user", "content": "question text 7Q"}
_PLAIN: Message = {"role": "assistant", "content": _TURN}
_CALLING: Message = {
    **_PLAIN,
    "tool_calls": [
        {"id": "call00000", "type": "function", "function": {"name": "lookup", "arguments": {"what": _CALL}}}
    ],
}
_REFUSALS = (ChatTemplateError, ContentDroppedByTemplateError, UnsupportedTemplateError)


@dataclass(frozen=True)
class StopSet:
    """The ids that end an assistant turn, the one to end a cut turn with, and what could not be probed."""

    ids: frozenset[int]
    turn_end_id: int | None
    """What the template appends to an assistant turn, else the tokenizer's eos; None if there is neither."""
    notes: tuple[str, ...]


def collect_stop_ids(
    eos_id: int | None,
    configs: Iterable[Mapping[str, Any]],
    template: ChatTemplate | None,
    control_ids: Mapping[str, int],
) -> StopSet:
    """Union of all sources.

    Args:
        eos_id: the tokenizer's own eos.
        configs: `generation_config.json` and `config.json`; `eos_token_id` of each and of its `text_config` counts.
        template: the chat template, probed for what follows an assistant turn.
        control_ids: text → id of every control token.
    """
    declared = {i for config in configs for i in _eos_ids(config)} | ({eos_id} if eos_id is not None else set())
    if template is None:
        return StopSet(frozenset(declared), eos_id, ("no chat template: stop tokens are the declared ones",))
    appended, followers, notes = _probe(template, control_ids)
    turn_end = appended if appended is not None else eos_id
    return StopSet(frozenset(declared | followers), turn_end, notes)


def _eos_ids(config: Mapping[str, Any]) -> Iterator[int]:
    for holder in (config, config.get("text_config") or {}):
        ids = holder.get("eos_token_id")
        yield from ids if isinstance(ids, list) else [] if ids is None else [ids]


def _probe(
    template: ChatTemplate, control_ids: Mapping[str, int]
) -> tuple[int | None, frozenset[int], tuple[str, ...]]:
    """The id the template appends to a plain turn, all ids that follow turns, and notes on skipped probes."""
    pattern = re.compile("|".join(map(re.escape, sorted(control_ids, key=len, reverse=True))) or r"(?!)")
    alone, note = _after(template, [_USER, _PLAIN], _TURN)
    appended = _control_at_start(alone, pattern)
    found, notes = {appended}, [note]
    for role in ("user", *TOOL_ROLES[:2]):
        text, note = _after(template, [_USER, _PLAIN, {"role": role, "content": _NEXT}], _TURN)
        found.add(_control_at_start(text, pattern))
        notes.append(note)
    after_call, note = _after_call(template, pattern)
    ids = frozenset(control_ids[token] for token in found | {after_call} if token)
    return control_ids[appended] if appended else None, ids, tuple(n for n in [*notes, note] if n)


def _after_call(template: ChatTemplate, pattern: re.Pattern[str]) -> tuple[str | None, str | None]:
    """The control token that ends a turn with a tool call: the turn's last, else what the next one begins with."""
    alone, note = _after(template, [_USER, _CALLING], _CALL)
    inside = pattern.findall(alone)
    if note or inside:
        return (inside[-1] if inside else None), note
    text, note = _after(template, [_USER, _CALLING, {"role": "tool", "content": _NEXT}], _CALL)
    following = pattern.search(text)
    return (following[0] if following else None), note


def _after(template: ChatTemplate, messages: list[Message], sentinel: str) -> tuple[str, str | None]:
    """Rendered text behind the last `sentinel`, or a note why there is none."""
    roles = ", ".join(message["role"] for message in messages) + (" with tool calls" if sentinel == _CALL else "")
    try:
        text = template.render(messages, add_generation_prompt=False)
    except _REFUSALS as error:
        return "", f"stop probe [{roles}] skipped: {error.message}"
    if sentinel not in text:
        return "", f"stop probe [{roles}] skipped: the template drops the assistant's turn"
    return text[text.rindex(sentinel) + len(sentinel) :], None


def _control_at_start(text: str, pattern: re.Pattern[str]) -> str | None:
    """The control token that `text` begins with, white space aside."""
    match = pattern.match(text.lstrip())
    return match[0] if match else None
