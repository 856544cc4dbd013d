"""Byte vocabularies: a tokenizer as a table id → bytes (spec §2).

A content token has bytes; a control token, and a padded row of the LM head, has none. The module knows nothing of how
a tokenizer segments text, of files, or of chat templates.

Axes: V ids of the vocabulary, rows of the LM head included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InvalidVocabularyError, TokenIdOutOfRangeError, TokensDoNotSpellResponseError


def _no_ids() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class ByteVocabulary:
    """The bytes of every id; immutable, compared by identity (compare `fingerprint` for equal content).

    Raises:
        InvalidVocabularyError: a content token is empty, or `canonical_ids` contradicts the bytes.
    """

    token_bytes: tuple[bytes | None, ...]
    """[V], None for a control token or a padded head row; never b""."""
    canonical_ids: NDArray[np.int32] = field(default_factory=_no_ids)
    """[V], id → the id the tokenizer itself emits for the same bytes, −1 for a control token; left out: the lowest."""

    def __post_init__(self) -> None:
        if b"" in self.token_bytes:
            raise InvalidVocabularyError(f"token {self.token_bytes.index(b'')} has no bytes and is not a control token")
        if not len(self.canonical_ids):
            object.__setattr__(self, "canonical_ids", _lowest_ids(self.token_bytes))
        self._check_canonical_ids()
        self.canonical_ids.flags.writeable = False

    def _check_canonical_ids(self) -> None:
        ids = self.canonical_ids
        if ids.shape != (self.size,) or ids.dtype != np.int32 or (ids < -1).any() or (ids >= self.size).any():
            raise InvalidVocabularyError(f"canonical ids must be {self.size} int32 between -1 and {self.size - 1}")
        content = ids[ids >= 0]
        led_to = tuple(None if i < 0 else self.token_bytes[i] for i in ids.tolist())
        if (
            led_to != self.token_bytes
            or len(content) != self.size - led_to.count(None)
            or (ids[content] != content).any()
        ):
            raise InvalidVocabularyError("canonical ids must lead to the same bytes, and from there to themselves")

    @property
    def size(self) -> int:
        """V."""
        return len(self.token_bytes)

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """[V], bytes of each token, −1 for a control token."""
        return np.fromiter((-1 if token is None else len(token) for token in self.token_bytes), np.int32, self.size)

    @cached_property
    def content_lengths(self) -> NDArray[np.int64]:
        """[V], bytes that each token contributes to a content: 0 for a control token."""
        return np.maximum(self.lengths, 0).astype(np.int64)

    @cached_property
    def ids_by_bytes(self) -> dict[bytes, int]:
        """Canonical id of every byte string that is a token."""
        ids = np.flatnonzero(self.canonical_ids == np.arange(self.size)).tolist()
        return {token: i for i in ids if (token := self.token_bytes[i]) is not None}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, as hex, over the size, the control ids and the bytes of every id."""
        digest = hashlib.sha256(self.size.to_bytes(8, "little"))
        digest.update(self.lengths.astype("<i4").tobytes())
        digest.update(b"".join(self._contents))
        return digest.hexdigest()

    @cached_property
    def is_whitespace(self) -> NDArray[np.bool_]:
        """[V], whether a token is only 0x20 and 0x09 bytes (spec §5, whitespace mask)."""
        flags = (token is not None and not token.strip(b" \t") for token in self.token_bytes)
        return np.fromiter(flags, np.bool_, self.size)

    @cached_property
    def _contents(self) -> tuple[bytes, ...]:
        return tuple(token or b"" for token in self.token_bytes)

    def content_of(self, ids: Sequence[int] | NDArray[np.integer]) -> bytes:
        """Concatenated bytes of `ids`; control tokens contribute none.

        Raises:
            TokenIdOutOfRangeError: an id is not in the vocabulary.
        """
        array = np.asarray(ids, np.int64)
        outside = (array < 0) | (array >= self.size)
        if outside.any():
            index = int(outside.argmax())
            raise TokenIdOutOfRangeError(
                f"id {array[index]} at index {index} is not in the vocabulary of {self.size} ids",
                token_id=int(array[index]),
                index=index,
                vocabulary_size=self.size,
            )
        return self.join(array.tolist())

    def join(self, ids: Iterable[int]) -> bytes:
        """`content_of` without the range check, for ids that the tokenizer itself gave."""
        return b"".join(map(self._contents.__getitem__, ids))

    def check_spells(self, ids: Sequence[int] | NDArray[np.integer], content: bytes) -> None:
        """Check that `ids` spell `content` exactly.

        Raises:
            TokensDoNotSpellResponseError: they do not; names the first byte offset that differs.
            TokenIdOutOfRangeError: an id is not in the vocabulary.
        """
        spelled = self.content_of(ids)
        if spelled != content:
            offset = _first_difference(spelled, content)
            raise TokensDoNotSpellResponseError(
                f"the token ids spell other bytes than the response from offset {offset} on "
                f"({len(spelled)} bytes spelled, {len(content)} in the response)",
                offset=offset,
            )


def _lowest_ids(token_bytes: Sequence[bytes | None]) -> NDArray[np.int32]:
    first: dict[bytes, int] = {}
    lowest = (-1 if token is None else first.setdefault(token, i) for i, token in enumerate(token_bytes))
    return np.fromiter(lowest, np.int32, len(token_bytes))


def _first_difference(a: bytes, b: bytes) -> int:
    shared = min(len(a), len(b))
    differ = np.frombuffer(a, np.uint8, shared) != np.frombuffer(b, np.uint8, shared)
    return int(differ.argmax()) if differ.any() else shared
