"""The tokenizer inside a GGUF file, as the files a tokenizer is otherwise made of.

Byte-level tokenizers are built from the file's own vocabulary and merges, with the pre-tokenizer it names; a name that
is not in the table is refused, for a wrong pre-tokenizer segments wrongly without a sign. SentencePiece tokenizers,
whose merges a GGUF does not hold, are rebuilt by transformers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokbridge.errors import InvalidVocabularyError

JsonObject = dict[str, Any]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_SPLITS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "glm4": _LLAMA3, "chatglm-bpe": _LLAMA3, "qwen2": _QWEN2}
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_IGNORES_MERGES = ("llama-bpe", "llama3", "glm4", "chatglm-bpe")
_NORMALIZES = ("qwen2",)

_CONTROL, _USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type`: special tokens, and added tokens that are not special."""
_SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


@dataclass(frozen=True)
class GgufTokenizer:
    """`tokenizer.json`, `tokenizer_config.json` and chat template, as a GGUF file describes them."""

    tokenizer_json: str
    tokenizer_config: JsonObject
    chat_template: str | None


def read_gguf_tokenizer(path: Path) -> GgufTokenizer:
    """Read the tokenizer of a GGUF file; needs the package `gguf`, and for SentencePiece `torch` (extra `teacher`).

    Raises:
        InvalidVocabularyError: the file names a pre-tokenizer that is not known here.
    """
    metadata = _read_metadata(path)
    tokens: list[str] = metadata["ggml.tokens"]
    ids = {name: metadata.get(f"ggml.{key}_token_id") for name, key in _SPECIAL_TOKENS.items()}
    byte_level = metadata.get("ggml.model") == "gpt2"
    return GgufTokenizer(
        tokenizer_json=json.dumps(byte_level_spec(metadata)) if byte_level else _rebuilt_by_transformers(path),
        tokenizer_config={name: tokens[i] for name, i in ids.items() if i is not None},
        chat_template=metadata.get("chat_template"),
    )


def byte_level_spec(metadata: JsonObject) -> JsonObject:
    """`tokenizer.json` of a byte-level BPE from GGUF metadata (keys without their `tokenizer.` prefix).

    Raises:
        InvalidVocabularyError: the pre-tokenizer is not known here.
    """
    tokens: list[str] = metadata["ggml.tokens"]
    name = metadata.get("ggml.pre", "")
    flags = {"add_prefix_space": False, "trim_offsets": True, "use_regex": name not in _SPLITS}
    byte_level = {"type": "ByteLevel", **flags}
    return {
        "version": "1.0",
        "added_tokens": _added_tokens(tokens, metadata["ggml.token_type"]),
        "normalizer": {"type": "NFC"} if name in _NORMALIZES else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*_splitting(name), byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": metadata["ggml.merges"],
            "ignore_merges": name in _IGNORES_MERGES,
        },
    }


def _splitting(name: str) -> list[JsonObject]:
    """The pre-tokenizers before the byte-level one, by the GGUF's name for them."""
    if name == "gpt-2":
        return []
    if name in _SINGLE_DIGITS:
        return [{"type": "Digits", "individual_digits": True}]
    if name in _SPLITS:
        return [{"type": "Split", "pattern": {"Regex": _SPLITS[name]}, "behavior": "Isolated", "invert": False}]
    raise InvalidVocabularyError(
        f"the GGUF file names the pre-tokenizer {name or '(none)'!r}, which is not known here; "
        "put the model's own tokenizer.json into the folder beside it"
    )


def _added_tokens(tokens: list[str], types: list[int]) -> list[JsonObject]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, "special": kind == _CONTROL, **flags}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]


def _read_metadata(path: Path) -> JsonObject:
    """The entries `tokenizer.…`, without that prefix."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    return {key.removeprefix("tokenizer."): entry.contents() for key, entry in fields.items() if "tokenizer." in key}


def _rebuilt_by_transformers(path: Path) -> str:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer.to_str()
