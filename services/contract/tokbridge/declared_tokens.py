"""What a tokenizer's files declare about single tokens: which are added, which are special, which end and begin text.

Reads `tokenizer.json` and `tokenizer_config.json`; the module decides nothing about stop sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokbridge.token_bytes import bytes_by_id, parse_tokenizer_json
from tokbridge.tokenizer_files import TokenizerFiles

JsonObject = dict[str, Any]
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class DeclaredTokens:
    """The tokens of one tokenizer; made by `declared_tokens`."""

    spec: JsonObject
    """`tokenizer.json`, parsed."""
    added: dict[int, JsonObject]
    """Added tokens by id, those of `tokenizer_config.json` alone included (Qwen3.5 has seven)."""
    special_tokens: dict[str, str]
    """`bos_token`, `eos_token`, `pad_token` and `unk_token`, where the vocabulary has them."""

    @cached_property
    def token_bytes(self) -> dict[int, bytes]:
        """Bytes of every id, control tokens too.

        Raises:
            InvalidVocabularyError: the tokenizer is not of a family that can be read.
        """
        return {i: token["content"].encode() for i, token in self.added.items()} | bytes_by_id(self.spec)

    @cached_property
    def ids_by_text(self) -> dict[str, int]:
        """Id of every piece and added token, by its text in the files."""
        return self.spec["model"]["vocab"] | {token["content"]: i for i, token in self.added.items()}

    @cached_property
    def control_ids(self) -> dict[str, int]:
        """Text → id of the tokens that are special or declared (spec §1); stop tokens are not known here."""
        special = {token["content"]: i for i, token in self.added.items() if token["special"]}
        return special | {text: self.ids_by_text[text] for text in self.special_tokens.values()}

    @property
    def eos_id(self) -> int | None:
        """The tokenizer's own eos."""
        eos = self.special_tokens.get("eos_token")
        return None if eos is None else self.ids_by_text[eos]


def declared_tokens(files: TokenizerFiles) -> DeclaredTokens:
    """Read the declarations of a tokenizer's files."""
    spec: JsonObject = parse_tokenizer_json(files.tokenizer_json)
    in_config = files.tokenizer_config.get("added_tokens_decoder") or {}
    added = {int(i): token for i, token in in_config.items()}
    added |= {token["id"]: token for token in spec.get("added_tokens") or ()}
    texts = {name: _text(files.tokenizer_config.get(name)) for name in _NAMES}
    known = spec["model"]["vocab"].keys() | {token["content"] for token in added.values()}
    special_tokens = {name: text for name, text in texts.items() if text is not None and text in known}
    return DeclaredTokens(spec, added, special_tokens)


def _text(declared: str | JsonObject | None) -> str | None:
    """Text of a token that is declared as a string or as an `AddedToken` object."""
    return declared["content"] if isinstance(declared, dict) else declared
