"""The realized chain of spanning rows (spec §5): which candidates a row has, and how much mass each of them gets.

Planning finds the candidates and the prefix masses to ask for; after the device pass `chain_masses` multiplies them.
Works row by row: spanning rows are well under one percent of a response.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Candidate:
    """A student token along the realized bytes that ends past the row's first teacher token."""

    student_id: int
    """Canonical id."""
    end: int
    """Byte offset of its end."""
    last_position: int
    """k: the teacher token it ends in."""
    query: int = -1
    """Index of the query for π_k of its last bytes; −1 where it ends with token k, whose own probability counts."""


@dataclass(frozen=True)
class Chain:
    """The nested candidates of one spanning row, shortest first, the emitted token among them."""

    row: int
    position: int
    """j: the teacher token the row starts in."""
    head_id: int
    """φ_r(w_j), the cell that holds the mass of the realized teacher token; −1 if unmapped."""
    candidates: tuple[Candidate, ...]

    @property
    def cells(self) -> list[int]:
        """The student ids that the chain touches."""
        touched = [candidate.student_id for candidate in self.candidates]
        return touched if self.head_id < 0 else [*touched, self.head_id]

    @property
    def last_position(self) -> int:
        """The last teacher position that the chain reads."""
        return self.candidates[-1].last_position


def find_candidates(
    content: bytes,
    start: int,
    ends: range,
    boundaries: NDArray[np.int64],
    ids_by_bytes: Mapping[bytes, int],
) -> list[Candidate]:
    """The student tokens that start at byte `start` of `content` and end at one of `ends`, without their queries.

    `boundaries` [M + 1] are the teacher's.
    """
    found = []
    for end in ends:
        student_id = ids_by_bytes.get(content[start:end])
        if student_id is not None:
            found.append(Candidate(student_id, end, int(np.searchsorted(boundaries, end)) - 1))
    return found


def chain_masses(
    chain: Chain,
    head_log_prob: float,
    log_probs: NDArray[np.float64],
    query_log_masses: NDArray[np.float64],
) -> NDArray[np.float64]:
    """c(u) of each candidate (A.5, A.6): float64 [candidates], falling.

    `head_log_prob` is ln of q_j(w_j)/π_j(r); `log_probs` [M] are those of the realized teacher tokens.
    """
    logs = np.empty(len(chain.candidates))
    for index, candidate in enumerate(chain.candidates):
        last = log_probs[candidate.last_position] if candidate.query < 0 else query_log_masses[candidate.query]
        logs[index] = head_log_prob + log_probs[chain.position + 1 : candidate.last_position].sum() + last
    return np.minimum.accumulate(np.exp(logs))
