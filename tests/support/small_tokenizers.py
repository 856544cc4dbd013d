"""Small hand-made `tokenizer.json` files of both families, for tests that need every id in view."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokbridge.token_bytes import byte_level_alphabet
from tokbridge.tokenizer_files import TokenizerFiles

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_LIKE = CHATML.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}",
)


def added_token(i: int, content: str, *, special: bool, **flags: bool) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": i, "content": content, "special": special, **plain, **flags}


def byte_level_spec(
    *, without: Sequence[int] = (), special: Sequence[str] = ("<|end|>",), plain: Sequence[str] = ()
) -> dict[str, Any]:
    """Byte-level BPE: one token a byte but for the bytes `without`, two merges, then the added tokens."""
    spelling = {byte: character for character, byte in byte_level_alphabet().items()}
    pieces = [spelling[byte] for byte in range(256) if byte not in without] + ["he", "ll"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    texts = [(text, True) for text in special] + [(text, False) for text in plain]
    added = [added_token(len(vocab) + i, text, special=flag) for i, (text, flag) in enumerate(texts)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e", "l l"]},
    }


def sentencepiece_spec(*, byte_fallback: bool = True) -> dict[str, Any]:
    """SentencePiece-like BPE: `<unk>`, all bytes, `▁`, a few letters and merges; ids 1 + byte are the byte tokens."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁▁", "  ", "</s>"]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        "version": "1.0",
        "added_tokens": [added_token(0, "<unk>", special=True), added_token(len(pieces) - 1, "</s>", special=True)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]},
        "pre_tokenizer": None,
        "decoder": {"type": "ByteFallback"},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": byte_fallback,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": ["▁ a", "▁ ▁"],
        },
    }


def small_files(spec: dict[str, Any], **others: Any) -> TokenizerFiles:
    """Files around a `tokenizer.json` object; eos is its last special token."""
    eos = next(token["content"] for token in reversed(spec["added_tokens"]) if token["special"])
    return TokenizerFiles("small", json.dumps(spec), **{"tokenizer_config": {"eos_token": eos}, **others})


def chat_files(template: str | None = CHATML, **others: Any) -> TokenizerFiles:
    """Byte-level files with three special tokens and the think tags as plain added tokens."""
    spec = byte_level_spec(special=("<|im_start|>", "<|im_end|>", "<|end|>"), plain=("<think>", "</think>"))
    config = {"eos_token": "<|im_end|>"}
    return small_files(spec, tokenizer_config=config, chat_template=template, **others)
