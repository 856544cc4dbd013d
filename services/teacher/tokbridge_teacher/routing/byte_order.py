"""A vocabulary's content tokens sorted by their bytes: tokens that start with c are one contiguous range (spec §4).

Knows nothing of probabilities or of a second vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokbridge.vocabulary import ByteVocabulary


class ByteOrder:
    """Rank ↔ id of the L content tokens of a vocabulary, in byte order (ids under the same bytes by id)."""

    def __init__(self, vocabulary: ByteVocabulary, ids_by_rank: NDArray[np.int32] | None = None) -> None:
        """Sort `vocabulary`, or take over a sorting made before (`ids_by_rank`, from a cache).

        Raises:
            ValueError: `ids_by_rank` does not hold every content token once.
        """
        content_ids = np.flatnonzero(vocabulary.lengths >= 0).astype(np.int32)
        token_bytes = vocabulary.token_bytes
        if ids_by_rank is None:
            ids_by_rank = np.array(sorted(content_ids.tolist(), key=lambda i: token_bytes[i] or b""), np.int32)
        elif not np.array_equal(np.sort(ids_by_rank), content_ids):
            raise ValueError("not an order of this vocabulary")
        self.ids_by_rank = ids_by_rank
        """int32 [L]."""
        self.rank_by_id = np.full(vocabulary.size, -1, np.int64)
        """int64 [V], −1 for control tokens."""
        self.rank_by_id[ids_by_rank] = np.arange(len(ids_by_rank))
        self.strings: list[bytes] = [token_bytes[i] or b"" for i in ids_by_rank.tolist()]
        """[L], ascending."""

    def prefix_range(self, prefix: bytes) -> tuple[int, int]:
        """Ranks `lo : hi` of the tokens whose bytes start with `prefix` (the token equal to it comes first)."""
        low = bisect_left(self.strings, prefix)
        after = _next_string(prefix)
        high = len(self.strings) if after is None else bisect_left(self.strings, after, low)
        return low, high


def extended_by(strings: Sequence[bytes], longer: Sequence[bytes]) -> NDArray[np.bool_]:
    """Whether some string of `longer` begins with each of `strings` and is not equal to it: [len(strings)].

    Both ascending. What extends a string follows it at once in byte order, so one look at its successor tells.
    """
    extended = np.zeros(len(strings), np.bool_)
    place = 0
    for index, string in enumerate(strings):
        place = bisect_right(longer, string, place)
        extended[index] = place < len(longer) and longer[place].startswith(string)
    return extended


def _next_string(prefix: bytes) -> bytes | None:
    """The least byte string greater than every string that starts with `prefix`; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
