"""φ of byte strings: the student token that each of them begins with (spec §4), in both routing modes.

Knows one student; nothing of a teacher, of probabilities or of caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import UnsupportedModeError
from tokbridge.modes import Routing
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.segmentation import ContentTokenizer

UNMAPPED = -1
"""φ = ⊥."""


class Router:
    """φ for one student. `routes` gives canonical ids, `UNMAPPED` where no student token fits."""

    def __init__(self, student: ByteVocabulary, mode: Routing, encoder: ContentTokenizer | None) -> None:
        """Take the student's vocabulary and, for `bpe`, its encoder.

        Raises:
            UnsupportedModeError: `bpe` without an encoder.
        """
        if mode == Routing.BPE and encoder is None:
            raise UnsupportedModeError("routing bpe needs the student's tokenizer.json; register the student with it")
        self.student = student
        self.mode: Routing = mode
        self.encoder = encoder if mode == Routing.BPE else None
        self.max_length = int(student.lengths.max(initial=0))

    def routes(self, strings: Sequence[bytes]) -> NDArray[np.int32]:
        """φ of each string: int32 [len(strings)]. An empty string has nothing left: `UNMAPPED`."""
        if self.encoder is None:
            return self._longest_prefixes(strings)
        return self._canonical(strings, self.encoder.first_tokens(strings))

    def settled_routes(self, strings: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """`routes`, and whether φ ends before the last pre-token of its string begins, so that nothing that follows
        can change it (spec §5b): [len(strings)] each. Never settled: strings that are not UTF-8, and all of them in
        `greedy`.
        """
        if self.encoder is None:
            return self.routes(strings), np.zeros(len(strings), np.bool_)
        first, settled = self.encoder.first_tokens_settled(strings)
        return self._canonical(strings, first), settled

    def _canonical(self, strings: Sequence[bytes], first: NDArray[np.int32]) -> NDArray[np.int32]:
        """Canonical ids of what the encoder gave; greedy where it gave nothing."""
        routes = np.where(first >= 0, self.student.canonical_ids[first], UNMAPPED).astype(np.int32)
        missing = np.flatnonzero(routes < 0)
        routes[missing] = self._longest_prefixes([strings[i] for i in missing.tolist()])
        return routes

    def _longest_prefixes(self, strings: Sequence[bytes]) -> NDArray[np.int32]:
        return longest_prefixes(strings, self.student.ids_by_bytes, self.max_length)


def longest_prefixes(strings: Sequence[bytes], ids_by_bytes: Mapping[bytes, int], max_length: int) -> NDArray[np.int32]:
    """The id of the longest key that is a prefix of each string, `UNMAPPED` where none is: int32 [len(strings)]."""
    routes = np.empty(len(strings), np.int32)
    find = ids_by_bytes.get
    for index, string in enumerate(strings):
        length = min(len(string), max_length)
        token_id = find(string[:length])
        while token_id is None and length > 1:
            length -= 1
            token_id = find(string[:length])
        routes[index] = UNMAPPED if token_id is None else token_id
    return routes
