"""Hostile protobuf: valid messages with one field broken, with bits flipped, and bytes that are no message at all.

Everything is drawn from one `random.Random`, so a seed tells an input, and Hypothesis can shrink one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

JSON_TEXTS = (
    "",
    "{",
    "[]",
    "{}",
    "null",
    "0",
    '"x"',
    "NaN",
    "[NaN]",
    "1e999",
    "[[]]",
    "[{}]",
    '[{"function": {"name": "f", "arguments": "{"}}]',
    '[{"function": {"name": "f", "arguments": "[1]"}}]',
    '[{"function": {"name": 3}}]',
    '[{"function": null}]',
    '[{"type": "function", "function": {"name": "f", "parameters": null}}]',
    '{"messages": []}',
    '{"enable_thinking": false}',
    '{"enable_thinking": []}',
    '{"bos_token": {}, "x": 1e400}',
    '{"loop": 1, "range": 2, "raise_exception": 3, "namespace": 4}',
    '{"__class__": 1, "self": 2, "": 3}',
    '{"a": "\\ud800"}',
    '{"tools": 1}',
    "[" * 70 + "]" * 70,
    "[" * 1000,
    '{"a":' * 65 + "1" + "}" * 65,
    "1" * 5000,
)
TEXTS = (
    "",
    "\x00",
    "x" * 300,
    "a b",
    "é\u0301",
    "<|im_start|>system\n",
    "<|im_end|>",
    "</think>",
    "<think>",
    "{{ 7 * 7 }}{% for i in range(99999999) %}x{% endfor %}",
    "\ue000\ue001\uf8ff",
    "\u202e\ufeff",
    "../../etc/passwd",
    "user",
    "assistant",
    "system",
    "tool",
    "narrator",
    "0" * 64,
)
INTEGERS = (0, 1, 2, 3, 7, 99, 101, 359, 365, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
DOUBLES = (0.0, -0.0, 1.0, 0.5, -1.0, 2.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"))

_INTEGER_TYPES = {
    FieldDescriptor.TYPE_UINT32: 32,
    FieldDescriptor.TYPE_UINT64: 64,
    FieldDescriptor.TYPE_FIXED32: 32,
    FieldDescriptor.TYPE_ENUM: 31,
}


def broken(random: Random, valid: Message) -> Message:
    """A copy with one field changed, at any depth."""
    message = type(valid)()
    message.CopyFrom(valid)
    _break(random, message)
    return message


def flipped(random: Random, serialized: bytes) -> bytes:
    """A few bits flipped, bytes cut, doubled or put in."""
    content = bytearray(serialized)
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(content) + 1)
        action = random.randrange(4)
        if action == 0 and place < len(content):
            content[place] ^= 1 << random.randrange(8)
        elif action == 1:
            del content[place : place + random.randint(1, 20)]
        elif action == 2:
            content[place:place] = content[place : place + random.randint(1, 20)]
        else:
            content[place:place] = random.randbytes(random.randint(1, 10))
    return bytes(content)


def noise(random: Random) -> bytes:
    """Bytes that follow no rule."""
    return random.randbytes(random.choice((0, 1, 2, 5, 20, 100, 1000)))


def broken_json(random: Random, value: Any) -> Any:
    """JSON data with one part changed."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value))
        action = random.randrange(6)
        if action == 0:
            return {name: item for name, item in value.items() if name != key}
        if action == 1:
            return {**value, random.choice(("extra", "", "__class__", key.upper())): value[key]}
        return {**value, key: broken_json(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        if random.random() < 0.2:
            return value[:place]
        return [*value[:place], broken_json(random, value[place]), *value[place + 1 :]]
    odd = (None, True, -1, 0, 2**31, 2**64, 0.5, 1e308, "", "x", "\x00", "Ġ", [], [[]], {}, {"type": "x"}, *TEXTS)
    return random.choice(odd)


def _break(random: Random, message: Message) -> None:
    field = random.choice(message.DESCRIPTOR.fields)
    if field.is_repeated:
        _break_repeated(random, message, field)
    elif field.message_type is not None:
        if message.HasField(field.name) and random.random() < 0.8:
            _break(random, getattr(message, field.name))
        else:
            getattr(message, field.name).SetInParent()
    elif random.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(random, field, getattr(message, field.name)))


def _break_repeated(random: Random, message: Message, field: FieldDescriptor) -> None:
    items = getattr(message, field.name)
    action = random.randrange(4)
    if field.message_type is not None:
        if action == 0 or not items:
            items.add()
        elif action == 1:
            del items[random.randrange(len(items)) :]
        elif action == 2:
            items.extend([items[0]] * random.choice((1, 10, 100)))
        else:
            _break(random, random.choice(items))
    elif action == 0 or not items:
        items.append(_scalar(random, field, 0))
    elif action == 1:
        del items[:]
    else:
        items[random.randrange(len(items))] = _scalar(random, field, 0)


def _scalar(random: Random, field: FieldDescriptor, old: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        texts: Sequence[str] = JSON_TEXTS if field.name.endswith("_json") and random.random() < 0.8 else TEXTS
        text = random.choice(texts)
        return old + text if random.random() < 0.3 else text
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.choice((b"", b"\x00", b"\xff" * 5, noise(random), old[:-1], old + b"x", flipped(random, old)))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return random.choice(DOUBLES)
    if field.type in _INTEGER_TYPES:
        bits = _INTEGER_TYPES[field.type]
        return random.choice((*INTEGERS, random.getrandbits(bits), 2**bits - 1)) % 2**bits
    return random.random() < 0.5


def broken_tokenizer(random: Random, tokenizer_json: str) -> str:
    """A `tokenizer.json` with one part changed, or cut."""
    if random.random() < 0.1:
        return tokenizer_json[: random.randrange(len(tokenizer_json))]
    return json.dumps(broken_json(random, json.loads(tokenizer_json)))
