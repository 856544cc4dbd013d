"""Content bytes → tokens, lossless for every byte string (spec §3.3).

Text goes through the tokenizer's own encoder; what that cannot spell goes byte by byte: bytes that are not UTF-8,
characters it drops or replaces, `▁` where it stands for a space. The module knows nothing of prompts and of students.

Axes: M tokens of one content.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from tokbridge.encoders import content_encoder
from tokbridge.errors import InvalidVocabularyError, UnspellableByteError
from tokbridge.library_faults import tokenizer_faults
from tokbridge.token_bytes import parse_tokenizer_json
from tokbridge.vocabulary import ByteVocabulary

MAX_ENCODE_S = 60.0
"""For the strings of one call; those of a vocabulary of 250,000 take two seconds."""
_SLICE = 1024

_NOT_UTF8 = re.compile("([\udc80-\udcff]+)")


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Tokens that spell one content."""

    ids: NDArray[np.int32]
    """[M]"""
    boundaries: NDArray[np.int64]
    """[M + 1], byte offsets: token i spells `boundaries[i] : boundaries[i + 1]`."""
    non_canonical: NDArray[np.bool_]
    """[M], tokens that stand for one byte each because the encoder does not spell it."""


@dataclass(frozen=True)
class _Piece:
    """Tokens of a stretch of content, and whether they were spelled byte by byte."""

    ids: Sequence[int]
    by_bytes: bool


class ContentTokenizer:
    """Segments content with one tokenizer; safe to share among threads."""

    def __init__(self, tokenizer_json: str, vocabulary: ByteVocabulary, *, for_good: bool = True) -> None:
        """Make the encoder; `for_good`: see `content_encoder`."""
        spec = parse_tokenizer_json(tokenizer_json)
        self.fingerprint = hashlib.sha256(tokenizer_json.encode()).hexdigest()
        """SHA-256 of the `tokenizer.json`, as hex."""
        added = (token["id"] for token in spec.get("added_tokens") or ())
        contents = vocabulary.token_bytes
        self.vocabulary = vocabulary
        control_ids = {i for i in added if i >= len(contents) or contents[i] is None}
        self._encoder = content_encoder(spec, control_ids, for_good=for_good)
        self._byte_ids = [vocabulary.ids_by_bytes.get(bytes([byte]), -1) for byte in range(256)]
        self._spellable: dict[str, bool] = {}

    def segment(self, content: bytes) -> Segmentation:
        """Tokens whose bytes are `content`.

        Raises:
            UnspellableByteError: the vocabulary has no token for a byte; names the byte and its offset.
        """
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return self._assemble(list(self._segment_mixed(content.decode(errors="surrogateescape"))))
        ids = self._encode([text])[0]
        return self._assemble([_Piece(ids, by_bytes=False)] if ids is not None else list(self._segment_around(text, 0)))

    def first_tokens(self, strings: Sequence[bytes]) -> NDArray[np.int32]:
        """[len(strings)], the first id the encoder gives; −1 where a string is not UTF-8 or its ids do not spell it."""
        encodings = self._encode_batch(strings)
        return np.fromiter(map(self._first_token, encodings, strings), np.int32, len(strings))

    def first_tokens_settled(self, strings: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """`first_tokens`, and whether that token ends before the last pre-token of its string: [len(strings)]."""
        encodings = self._encode_batch(strings)
        firsts = np.fromiter(map(self._first_token, encodings, strings), np.int32, len(strings))
        spans = ((words[0], words[-1]) if (words := encoding.word_ids) else (0, 0) for encoding in encodings)
        settled = np.fromiter((first != last for first, last in spans), np.bool_, len(strings))
        return firsts, settled & (firsts >= 0)

    def _encode_batch(self, strings: Sequence[bytes]) -> list[Encoding]:
        """Encodings of each string; the regular expressions of a tokenizer that a caller sent may take for ever.

        Raises:
            InvalidVocabularyError: more than `MAX_ENCODE_S` were taken.
        """
        encodings: list[Encoding] = []
        give_up_at = time.monotonic() + MAX_ENCODE_S
        for start in range(0, len(strings), _SLICE):
            if time.monotonic() > give_up_at:
                raise InvalidVocabularyError(f"encoding with this tokenizer takes more than {MAX_ENCODE_S:g} s")
            texts = [string.decode(errors="replace") for string in strings[start : start + _SLICE]]
            with tokenizer_faults():
                encodings += self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return encodings

    def _first_token(self, encoding: Encoding, string: bytes) -> int:
        """First id of an encoding that spells `string`, else −1."""
        ids = self._if_spelled(encoding.ids, string)
        return ids[0] if ids else -1

    def _segment_mixed(self, escaped: str) -> Iterator[_Piece]:
        """Pieces of content that is not all UTF-8; its other bytes stand in `escaped` as lone surrogates."""
        parts = _NOT_UTF8.split(escaped)
        texts = list(dict.fromkeys(parts[::2]))
        encoded = dict(zip(texts, self._encode(texts), strict=True))
        offset = 0
        for place, part in enumerate(parts):
            raw = part.encode(errors="surrogateescape")
            ids = None if place % 2 else encoded[part]
            if ids is not None:
                yield _Piece(ids, by_bytes=False)
            else:
                yield from [self._spell_bytes(raw, offset)] if place % 2 else self._segment_around(part, offset)
            offset += len(raw)

    def _segment_around(self, text: str, offset: int) -> Iterator[_Piece]:
        """Pieces of `text`, which begins at byte `offset` and holds what the encoder does not spell."""
        parts = self._split_at_unspellable(text)
        for part, ids in zip(parts, self._encode(parts), strict=True):
            raw = part.encode()
            yield self._spell_bytes(raw, offset) if ids is None else _Piece(ids, by_bytes=False)
            offset += len(raw)

    def _split_at_unspellable(self, text: str) -> list[str]:
        """Runs of characters that the encoder spells when alone, and runs of those that it does not."""
        characters = sorted(set(text))
        unknown = [character for character in characters if character not in self._spellable]
        self._spellable.update(zip(unknown, (ids is not None for ids in self._encode(unknown)), strict=True))
        bad = "".join(re.escape(character) for character in characters if not self._spellable[character])
        return [part for part in re.split(f"([{bad}]+)", text) if part] if bad else [text]

    def _encode(self, texts: Sequence[str]) -> list[list[int] | None]:
        """The encoder's ids of each text, or None where they do not spell it."""
        with tokenizer_faults():
            encodings = self._encoder.encode_batch_fast(texts, add_special_tokens=False)
        return [self._if_spelled(encoding.ids, text.encode()) for encoding, text in zip(encodings, texts, strict=True)]

    def _if_spelled(self, ids: list[int], content: bytes) -> list[int] | None:
        known = not ids or max(ids) < self.vocabulary.size
        return ids if known and self.vocabulary.join(ids) == content else None

    def _spell_bytes(self, raw: bytes, offset: int) -> _Piece:
        ids = [self._byte_ids[byte] for byte in raw]
        if -1 in ids:
            place = ids.index(-1)
            raise UnspellableByteError(
                f"the vocabulary has no token for byte 0x{raw[place]:02X} at offset {offset + place}",
                byte=raw[place],
                offset=offset + place,
            )
        return _Piece(ids, by_bytes=True)

    def _assemble(self, pieces: list[_Piece]) -> Segmentation:
        ids = np.array(list(chain.from_iterable(piece.ids for piece in pieces)), np.int32)
        boundaries = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(self.vocabulary.content_lengths[ids], out=boundaries[1:])
        by_bytes = np.array([piece.by_bytes for piece in pieces], np.bool_)
        return Segmentation(ids, boundaries, by_bytes.repeat([len(piece.ids) for piece in pieces]))
