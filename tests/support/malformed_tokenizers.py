"""Changes to a `tokenizer.json` after which it describes no tokenizer, for tests of every way one comes in."""

from __future__ import annotations

from typing import Any

import pytest

from support.small_tokenizers import added_token

SURROGATE = "\ud800"
_UNNAMED = {key: value for key, value in added_token(9, "x", special=False).items() if key != "content"}
_UNFLAGGED = {key: value for key, value in added_token(9, "x", special=False).items() if key != "special"}

MALFORMED: dict[str, dict[str, Any]] = {
    "pre-tokenizer that is text": {"pre_tokenizer": "x"},
    "pre-tokenizer that is empty": {"pre_tokenizer": {}},
    "type that is no text": {"pre_tokenizer": {"type": 5}},
    "normalizer that is a list": {"normalizer": [1]},
    "replacement of nothing": {"normalizer": {"type": "Replace"}},
    "replacement with bare pattern": {"normalizer": {"type": "Replace", "pattern": "x", "content": "y"}},
    "replacement without content": {"normalizer": {"type": "Replace", "pattern": {"String": " "}}},
    "sequence of a number": {"normalizer": {"type": "Sequence", "normalizers": [1]}},
    "sequence that is a number": {"normalizer": {"type": "Sequence", "normalizers": 1}},
    "decoder that is a number": {"decoder": 3},
    "added tokens in an object": {"added_tokens": {"a": 1}},
    "added token that is text": {"added_tokens": ["x"]},
    "added token without id": {"added_tokens": [{"content": "x"}]},
    "added token without content": {"added_tokens": [_UNNAMED]},
    "added token without special": {"added_tokens": [_UNFLAGGED]},
    "added token that is numeric": {"added_tokens": [{**_UNNAMED, "content": 5}]},
    "added token that is a surrogate": {"added_tokens": [{**_UNNAMED, "content": SURROGATE}]},
    "model that is text": {"model": "BPE"},
    "piece that is a surrogate": {"model": {"type": "BPE", "vocab": {SURROGATE: 1}, "merges": []}},
    "prefix of every piece that is long": {
        "model": {"type": "BPE", "vocab": {}, "merges": [], "continuing_subword_prefix": "x" * 17}
    },
    "suffix of every word that is long": {
        "model": {"type": "BPE", "vocab": {}, "merges": [], "end_of_word_suffix": "x" * 17}
    },
    "id that is a fraction": {"model": {"type": "BPE", "vocab": {"a": 1.5}, "merges": []}},
    "id that is a truth value": {"model": {"type": "BPE", "vocab": {"a": True}, "merges": []}},
}
"""Fields to replace, by what is wrong with them."""

malformed = pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
