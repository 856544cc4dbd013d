"""Encoders made from a `tokenizer.json`: one for content bytes, one for text of a prompt.

Neither ever parses a control token out of text. The content encoder changes no byte: normalizers that do are dropped
(spec §3.3). The prompt encoder keeps the file's normalizers, as the model saw them in training. The module knows
nothing of vocabularies: whether an encoding spells its text is the caller's check.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from tokenizers import Tokenizer

from tokbridge.errors import InvalidVocabularyError
from tokbridge.library_faults import tokenizer_faults
from tokbridge.token_bytes import SPACE_MARK

JsonObject = dict[str, Any]


def content_encoder(spec: JsonObject, control_ids: Collection[int], *, for_good: bool = True) -> Tokenizer:
    """Encoder of content: no byte added, dropped or replaced, but SentencePiece's mark for a space.

    Args:
        spec: a parsed `tokenizer.json`.
        control_ids: ids of control tokens.
        for_good: whether it is kept as long as the process. The library never frees a BPE model's cache of words, 80 kB
            for 400 words, so one that is made for a caller and forgotten has none.
    """
    kept = {
        "normalizer": _sequence("normalizers", [part for part in _flat(spec.get("normalizer")) if _keeps_bytes(part)]),
        "pre_tokenizer": _sequence(
            "pretokenizers", [_without_prefix(part) for part in _flat(spec.get("pre_tokenizer"))]
        ),
    }
    encoder = _text_encoder({**spec, **kept}, control_ids)
    if not for_good:
        model = encoder.model
        model._resize_cache(0)
        encoder.model = model
    return encoder


def prompt_encoder(spec: JsonObject, control_ids: Collection[int]) -> Tokenizer:
    """Encoder of the text between two control tokens of a prompt."""
    return _text_encoder(spec, control_ids)


def _text_encoder(spec: JsonObject, control_ids: Collection[int]) -> Tokenizer:
    """The encoder of `spec` without post-processing, to which control tokens are text."""
    added = [
        {**token, "special": token["id"] in control_ids, "lstrip": False, "rstrip": False}
        for token in spec.get("added_tokens") or ()
    ]
    plain = {**spec, "added_tokens": added, "truncation": None, "padding": None, "post_processor": None}
    text = json.dumps(plain)
    try:
        with tokenizer_faults():
            encoder = Tokenizer.from_str(text)
    except InvalidVocabularyError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise InvalidVocabularyError("the tokenizers library cannot read this tokenizer.json") from error
    encoder.encode_special_tokens = True
    return encoder


def _flat(part: JsonObject | None) -> list[JsonObject]:
    """Parts of a normalizer or pre-tokenizer, sequences opened."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    inner = part.get("normalizers") or part.get("pretokenizers") or []
    return [leaf for child in inner for leaf in _flat(child)]


def _sequence(key: str, parts: list[JsonObject]) -> JsonObject | None:
    return {"type": "Sequence", key: parts} if parts else None


def _keeps_bytes(normalizer: JsonObject) -> bool:
    if normalizer["type"] == "Replace":
        # Anything else in a space's place could be a megabyte, and a vocabulary has 100,000 spaces.
        return normalizer["pattern"].get("String") == " " and normalizer["content"] == SPACE_MARK
    return normalizer["type"] == "ByteLevel"


def _without_prefix(pre_tokenizer: JsonObject) -> JsonObject:
    if pre_tokenizer["type"] == "Metaspace":
        return {**pre_tokenizer, "prepend_scheme": "never"}
    if pre_tokenizer["type"] == "ByteLevel":
        return {**pre_tokenizer, "add_prefix_space": False}
    return pre_tokenizer
