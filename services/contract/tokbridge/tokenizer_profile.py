"""All that is known of one tokenizer: byte vocabulary, stop set, chat template, how prompts are tokenized.

Teacher and student are each described by one `TokenizerProfile`. It is made from files alone; the module knows no
model weights and neither side's use of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tokbridge.chat_template import ChatTemplate
from tokbridge.declared_tokens import DeclaredTokens, declared_tokens
from tokbridge.encoders import content_encoder
from tokbridge.errors import InvalidVocabularyError, LimitExceededError
from tokbridge.library_faults import tokenizer_faults
from tokbridge.prompt_tokenizer import PromptTokenizer
from tokbridge.stops import collect_stop_ids
from tokbridge.tokenizer_files import TokenizerFiles, load_tokenizer_files
from tokbridge.vocabulary import ByteVocabulary


@dataclass(frozen=True, eq=False)
class TokenizerProfile:
    """One tokenizer, described for either side."""

    name: str
    files: TokenizerFiles
    vocabulary: ByteVocabulary
    tokenizer_size: int
    """Ids of the tokenizer, added ones included; the vocabulary also has the padded rows of the LM head."""
    stop_ids: frozenset[int]
    turn_end_id: int
    """s* of a response that was cut (spec §1)."""
    template: ChatTemplate | None
    control_ids: Mapping[str, int]
    """Text → id of every control token."""
    notes: tuple[str, ...]

    @cached_property
    def prompt_tokenizer(self) -> PromptTokenizer:
        """Tokenizer of rendered prompts, made on first use."""
        return PromptTokenizer(self.files.tokenizer_json, self.control_ids)


def load_tokenizer(source: str | Path, head_size: int | None = None) -> TokenizerProfile:
    """Describe the tokenizer of a folder, a GGUF file or a hub id.

    Args:
        source: what `load_tokenizer_files` takes.
        head_size: rows of the LM head; left out: `vocab_size` of `config.json`, else the tokenizer's own size.

    Raises:
        InvalidVocabularyError: it cannot be read as a byte vocabulary, or declares no token that ends a turn.
    """
    return profile_from_files(load_tokenizer_files(source), head_size)


def profile_from_files(
    files: TokenizerFiles, head_size: int | None = None, *, max_vocabulary_size: int | None = None
) -> TokenizerProfile:
    """As `load_tokenizer`, from files already read.

    Raises:
        LimitExceededError: more than `max_vocabulary_size` ids; raised before a table of them is made.
    """
    tokens = declared_tokens(files)
    template = files.chat_template and ChatTemplate(
        files.chat_template, tokens.special_tokens, frozenset(tokens.control_ids)
    )
    configs = (files.generation_config, files.config)
    stops = collect_stop_ids(tokens.eos_id, configs, template or None, tokens.control_ids)
    control_ids = tokens.control_ids | {text: i for text, i in tokens.ids_by_text.items() if i in stops.ids}
    size = _vocabulary_size(tokens, set(control_ids.values()), _head_size(files, head_size), files.name)
    if max_vocabulary_size is not None and size > max_vocabulary_size:
        raise LimitExceededError(
            f"the vocabulary of {files.name} has {size} ids, over the limit of {max_vocabulary_size}",
            name="max_vocabulary_size",
            value=size,
            limit=max_vocabulary_size,
        )
    stop_ids = frozenset(i for i in stops.ids if i < size)
    if not stop_ids:
        raise InvalidVocabularyError(f"{files.name} declares no token that ends a turn; set eos_token in its config")
    return TokenizerProfile(
        name=files.name,
        files=files,
        vocabulary=_byte_vocabulary(tokens, frozenset(control_ids.values()), size),
        tokenizer_size=max(tokens.token_bytes) + 1,
        stop_ids=stop_ids,
        turn_end_id=stops.turn_end_id if stops.turn_end_id in stop_ids else min(stop_ids),
        template=replace(template, control_tokens=frozenset(control_ids)) if template else None,
        control_ids=control_ids,
        notes=stops.notes,
    )


def _head_size(files: TokenizerFiles, head_size: int | None) -> int | None:
    """Rows of the LM head: as given, else of `config.json`, whose `text_config` may hold them."""
    text_config = files.config.get("text_config") or {}
    return head_size or files.config.get("vocab_size") or text_config.get("vocab_size")


def _vocabulary_size(tokens: DeclaredTokens, control_ids: set[int], head_size: int | None, name: str) -> int:
    """Ids of the vocabulary: the LM head's rows, which must hold every content token."""
    content_ids = tokens.token_bytes.keys() - control_ids
    if not content_ids:
        raise InvalidVocabularyError(f"{name} has no content token")
    last_content_id = max(content_ids)
    if head_size is not None and head_size <= last_content_id:
        raise InvalidVocabularyError(
            f"the LM head of {name} has {head_size} rows, but its token {last_content_id} none"
        )
    return head_size or max(tokens.token_bytes) + 1


def _byte_vocabulary(tokens: DeclaredTokens, control_ids: frozenset[int], size: int) -> ByteVocabulary:
    contents = tuple(None if i in control_ids else tokens.token_bytes.get(i) for i in range(size))
    lowest = ByteVocabulary(contents)
    doubled = np.flatnonzero((lowest.canonical_ids >= 0) & (lowest.canonical_ids != np.arange(size)))
    texts = {text for i in doubled.tolist() if (text := _decoded(contents[i])) is not None}
    if not texts:
        return lowest
    emitted = _emitted_ids(content_encoder(tokens.spec, control_ids, for_good=False), sorted(texts))
    canonical = lowest.canonical_ids.copy()
    for text, i in emitted.items():
        if i < size and contents[i] == text:
            canonical[lowest.canonical_ids == lowest.ids_by_bytes[text]] = i
    return ByteVocabulary(contents, canonical)


def _decoded(token: bytes | None) -> str | None:
    """The token's text, or None where its bytes are not UTF-8."""
    try:
        return None if token is None else token.decode()
    except UnicodeDecodeError:
        return None


def _emitted_ids(encoder: Tokenizer, texts: list[str]) -> dict[bytes, int]:
    """The id that the encoder gives for each of `texts`, where it gives one alone."""
    with tokenizer_faults():
        encodings = encoder.encode_batch(texts, add_special_tokens=False)
    return {
        text.encode(): encoding.ids[0] for text, encoding in zip(texts, encodings, strict=True) if len(encoding) == 1
    }
