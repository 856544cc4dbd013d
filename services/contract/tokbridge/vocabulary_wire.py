"""A byte vocabulary and a tokenizer file to and from the payloads of a registration.

Unpacking trusts nothing: every table is checked against the others before a vocabulary is built from it.

Axes: V ids of the vocabulary.
"""

from __future__ import annotations

import zlib
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InvalidRequestError, InvalidVocabularyError, LimitExceededError
from tokbridge.targets import offsets_of
from tokbridge.vocabulary import ByteVocabulary

MAX_TOKENIZER_JSON_BYTES = 2**27
"""Expanded size of a `tokenizer.json` that is accepted; the largest seen has 33 MB."""

MAX_TOKEN_BYTES = 2**14
"""Of one token; the longest seen has 512."""

_INT32 = np.dtype("<i4")


def pack_vocabulary(vocabulary: ByteVocabulary) -> tuple[bytes, bytes, bytes]:
    """Token lengths (int32[V], −1 for a control token), bytes of all content tokens, canonical ids (int32[V])."""
    return (
        vocabulary.lengths.astype(_INT32).tobytes(),
        b"".join(token for token in vocabulary.token_bytes if token is not None),
        vocabulary.canonical_ids.astype(_INT32).tobytes(),
    )


def unpack_vocabulary(token_lengths: bytes, token_bytes: bytes, canonical_ids: bytes) -> ByteVocabulary:
    """Rebuild a vocabulary from what `pack_vocabulary` gave; the first and last have one int32 an id.

    Raises:
        InvalidVocabularyError: the tables do not belong together.
    """
    lengths = np.frombuffer(token_lengths, _INT32)
    content = lengths > 0
    if not (content | (lengths == -1)).all():
        raise InvalidVocabularyError("a token length is neither positive nor −1 for a control token")
    check_token_lengths(lengths)
    offsets = offsets_of(np.where(content, lengths, 0))
    if offsets[-1] != len(token_bytes):
        raise InvalidVocabularyError(f"token lengths add up to {offsets[-1]} bytes, but {len(token_bytes)} were sent")
    tokens = tuple(token_bytes[start:stop] if stop > start else None for start, stop in pairwise(offsets.tolist()))
    vocabulary = ByteVocabulary(tokens, np.frombuffer(canonical_ids, _INT32).astype(np.int32))
    _check_canonical(vocabulary)
    return vocabulary


def check_token_lengths(lengths: NDArray[np.int32]) -> None:
    """Raise `LimitExceededError` if one of `lengths` [V] is over `MAX_TOKEN_BYTES`."""
    longest = int(lengths.max(initial=0))
    if longest > MAX_TOKEN_BYTES:
        raise LimitExceededError(
            f"a token has {longest} bytes, over the limit of {MAX_TOKEN_BYTES}",
            name="token_bytes",
            value=longest,
            limit=MAX_TOKEN_BYTES,
        )


def _check_canonical(vocabulary: ByteVocabulary) -> None:
    """One canonical id for each byte string; that it has the same bytes is the vocabulary's own check."""
    ids = vocabulary.canonical_ids[vocabulary.canonical_ids >= 0]
    settled = bool((vocabulary.canonical_ids[ids] == ids).all())
    if not settled or len(np.unique(ids)) != len({token for token in vocabulary.token_bytes if token is not None}):
        raise InvalidVocabularyError("two ids with the same bytes have different canonical ids")


def pack_tokenizer(tokenizer_json: str | None) -> bytes:
    """The tokenizer file, zlib-compressed; empty when there is none."""
    return zlib.compress(tokenizer_json.encode()) if tokenizer_json else b""


def unpack_tokenizer(payload: bytes, max_bytes: int = MAX_TOKENIZER_JSON_BYTES) -> str | None:
    """Expand what `pack_tokenizer` gave, never to more than `max_bytes`.

    Raises:
        LimitExceededError: it expands to more.
        InvalidRequestError: it is not one whole zlib stream of UTF-8.
    """
    if not payload:
        return None
    expander = zlib.decompressobj()
    try:
        content = expander.decompress(payload, max_bytes + 1)
    except zlib.error as error:
        raise InvalidRequestError("the tokenizer is not zlib-compressed", field="tokenizer_json") from error
    if len(content) > max_bytes:
        raise LimitExceededError(
            f"the tokenizer expands to more than {max_bytes} bytes", name="tokenizer_json_bytes", limit=max_bytes
        )
    if not expander.eof or expander.unused_data:
        raise InvalidRequestError("the tokenizer is not one whole zlib stream", field="tokenizer_json")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the tokenizer is not UTF-8", field="tokenizer_json") from error
