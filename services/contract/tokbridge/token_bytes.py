"""The bytes of every id of a `tokenizer.json` (spec §2).

Reads two families: byte-level BPE, whose pieces spell one byte a character, and SentencePiece BPE with byte fallback.
Added tokens stand for their literal text; only where a SentencePiece vocabulary lists one itself (Gemma's runs of `▁`)
it is spelled as a piece. The module decides nothing about control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tokbridge.errors import InvalidVocabularyError
from tokbridge.json_text import check_num_values
from tokbridge.tokenizer_shape import check_tokenizer_shape

SPACE_MARK = "\u2581"
"""SentencePiece's stand-in for a space."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

JsonObject = dict[str, Any]


def parse_tokenizer_json(text: str) -> JsonObject:
    """The object in a `tokenizer.json`.

    Raises:
        InvalidVocabularyError: it is not JSON, or not of the shape of a BPE tokenizer's.
    """
    try:
        check_num_values(text)
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidVocabularyError("this tokenizer.json is not JSON, or more than is read") from error
    check_tokenizer_shape(spec)
    return spec


def bytes_by_id(spec: JsonObject) -> dict[int, bytes]:
    """Bytes of each id of a parsed `tokenizer.json`, added tokens included.

    Raises:
        InvalidVocabularyError: the tokenizer is of neither family, or a piece cannot be spelled.
    """
    spell = _speller(spec)
    added = {token["id"]: token["content"].encode() for token in spec.get("added_tokens") or ()}
    literal = added.keys() if is_byte_level(spec) else added.keys() - spec["model"]["vocab"].values()
    spelled = {i: spell(piece) for piece, i in spec["model"]["vocab"].items() if i not in literal}
    return spelled | {i: added[i] for i in literal}


def is_byte_level(spec: JsonObject) -> bool:
    """Whether pieces spell one byte a character."""
    return "ByteLevel" in {part["type"] for part in _parts(spec)}


def is_sentencepiece(spec: JsonObject) -> bool:
    """Whether pieces are text with `▁` for a space."""
    marks_spaces = any(
        part["type"] == "Metaspace" or (part["type"] == "Replace" and SPACE_MARK in (part["content"], _pattern(part)))
        for part in _parts(spec)
    )
    return marks_spaces and not is_byte_level(spec)


def _speller(spec: JsonObject) -> Callable[[str], bytes]:
    if is_byte_level(spec):
        return _spell_byte_level
    if is_sentencepiece(spec):
        return _spell_sentencepiece if spec["model"].get("byte_fallback") else _spell_marked_text
    raise InvalidVocabularyError("this BPE tokenizer is neither byte-level nor SentencePiece-like")


def _parts(spec: JsonObject) -> Iterator[JsonObject]:
    """Every normalizer, pre-tokenizer and decoder, those in sequences one by one."""
    pending = [spec.get("normalizer"), spec.get("pre_tokenizer"), spec.get("decoder")]
    while pending:
        part = pending.pop()
        if part and part["type"] == "Sequence":
            pending += part.get("normalizers") or part.get("pretokenizers") or part.get("decoders") or []
        elif part:
            yield part


def _pattern(part: JsonObject) -> str | None:
    return part["pattern"].get("String")


def byte_level_alphabet() -> dict[str, int]:
    """Character → byte of byte-level BPE: printable Latin-1 stands for itself, the rest for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = byte_level_alphabet()


def _spell_byte_level(piece: str) -> bytes:
    try:
        return bytes(map(_ALPHABET.__getitem__, piece))
    except KeyError as error:
        raise InvalidVocabularyError(f"piece {piece!r} of a byte-level vocabulary holds {error.args[0]!r}") from error


def _spell_marked_text(piece: str) -> bytes:
    return piece.replace(SPACE_MARK, " ").encode()


def _spell_sentencepiece(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else _spell_marked_text(piece)
