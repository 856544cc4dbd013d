"""JSON text from outside: read only where it is neither nested past a bound nor holds what UTF-8 cannot carry.

Python's reader takes both, and whatever walks or encodes the data later fails on them. The module knows no fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
"""Arrays and objects inside one another; schemas of tools have about ten."""


MAX_VALUES = 1 << 23
"""Values in one text; the largest `tokenizer.json` seen has two million."""


def check_num_values(text: str | bytes) -> None:
    """Raise `ValueError` if `text` may hold more than `MAX_VALUES` values: read, each takes 30 times its bytes."""
    counts = map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
    if sum(counts) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")


def load_json(text: str) -> Any:
    """The value that `text` spells.

    Raises:
        ValueError: it is no JSON, nested deeper than `MAX_DEPTH`, or holds a lone surrogate.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from error
    check_depth(value)
    check_utf8(json.dumps(value, ensure_ascii=False))
    return value


def compact_json(value: object) -> str:
    """Compact JSON of a value, as UTF-8 can carry it.

    Raises:
        TypeError: something in it has no JSON form.
        ValueError: it is nested deeper than `MAX_DEPTH`, or holds a lone surrogate, NaN or ±∞.
    """
    check_depth(value)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    check_utf8(text)
    return text


def check_utf8(text: str) -> None:
    """Raise `ValueError` if `text` holds a lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"lone surrogate {text[error.start]!r}") from error


def check_depth(value: object) -> None:
    """Raise `ValueError` if arrays and objects are nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _children(value: object) -> list[Any]:
    """Arrays and objects directly inside an array or object."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [item for item in items if isinstance(item, (Mapping, list, tuple))]
