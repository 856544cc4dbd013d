"""The shape of a parsed `tokenizer.json`: everything that code here looks up is there and of its type.

Checked once, where the file is parsed, so that no reader has to. Options that only the tokenizers library reads are
left to it.
"""

from __future__ import annotations

from typing import Any

from tokbridge.errors import InvalidVocabularyError
from tokbridge.json_text import check_depth, check_utf8

MAX_IDS = 1 << 24
"""No model has more; an id past it is a broken or hostile file."""

MAX_AFFIX_LENGTH = 16
"""Of what a model puts before or behind every piece; `</w>` and `##` are the ones in use."""

_SEQUENCE_KEYS = ("normalizers", "pretokenizers", "decoders")


def check_tokenizer_shape(spec: object) -> None:
    """Check what a `tokenizer.json` holds.

    Raises:
        InvalidVocabularyError: it is not a BPE tokenizer's, or a field is missing or malformed; names it.
    """
    try:
        check_depth(spec)
    except ValueError as error:
        raise _wrong("the file", str(error)) from error
    fields = _object(spec, "the file")
    _check_model(_object(fields.get("model"), "`model`"))
    for index, token in enumerate(_list(fields.get("added_tokens"), "`added_tokens`")):
        _check_added_token(token, f"added token {index}")
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        if fields.get(name) is not None:
            _check_part(fields[name], f"`{name}`")


def _check_model(model: dict[str, Any]) -> None:
    if model.get("type") != "BPE":
        raise _wrong("`model`", f"is {model.get('type')!r:.40}; only BPE is supported")
    vocab = _object(model.get("vocab"), "`model.vocab`")
    _text("".join(vocab), "`model.vocab`")
    for i in vocab.values():
        _id(i, "a piece of `model.vocab`")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = model.get(name)
        if affix is not None and len(_text(affix, f"`model.{name}`")) > MAX_AFFIX_LENGTH:
            raise _wrong(f"`model.{name}`", f"has more than {MAX_AFFIX_LENGTH} characters")


def _check_added_token(token: object, where: str) -> None:
    fields = _object(token, where)
    _id(fields.get("id"), where)
    _text(fields.get("content"), f"`content` of {where}")
    for name in ("special", "lstrip", "rstrip"):
        if not isinstance(fields.get(name), bool):
            raise _wrong(f"`{name}` of {where}", "is not true or false")


def _check_part(part: object, where: str) -> None:
    """A normalizer, pre-tokenizer or decoder, those inside a sequence too."""
    fields = _object(part, where)
    kind = _text(fields.get("type"), f"`type` of {where}")
    if kind == "Replace":
        _object(fields.get("pattern"), f"`pattern` of {where}")
        _text(fields.get("content"), f"`content` of {where}")
    if kind == "Sequence":
        for name in _SEQUENCE_KEYS:
            for child in _list(fields.get(name), f"`{name}` of {where}"):
                _check_part(child, f"a part of {where}")


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "is not an object")
    return value


def _list(value: object, where: str) -> list[Any]:
    """A list; one that is left out is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(where, "is not an array")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "is not text")
    try:
        check_utf8(value)
    except ValueError as error:
        raise _wrong(where, f"holds a {error}") from error
    return value


def _id(value: object, where: str) -> None:
    if type(value) is not int or not 0 <= value < MAX_IDS:
        raise _wrong(where, f"has the id {value!r:.40}, which is no integer from 0 to {MAX_IDS - 1}")


def _wrong(where: str, what: str) -> InvalidVocabularyError:
    return InvalidVocabularyError(f"tokenizer.json: {where} {what}")
