"""Two segmentations of one text side by side: relations between tokens, shared spans (paper, Table D.2).

A chunk is what lies between two neighbouring sync points. Its relation says how many tokens of each side
it holds. Knows offsets only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RELATIONS = ("1:1", "1:N", "N:1", "M:N")
"""Teacher tokens : student tokens of a chunk."""


@dataclass(frozen=True)
class SegmentationComparison:
    """How one text falls apart under both tokenizers."""

    content_bytes: int
    teacher_tokens: int
    student_tokens: int
    relation_shares: dict[str, float]
    """Share of student positions in chunks of each relation."""
    span_jaccard: float
    """Spans (start, end) that are a token of both, over spans that are a token of either."""


def compare_boundaries(teacher: NDArray[np.int64], student: NDArray[np.int64]) -> SegmentationComparison:
    """Compare two boundary arrays [M + 1] and [N + 1] over the same bytes, both from 0 to the length."""
    sync = np.intersect1d(teacher, student)
    teacher_counts = np.diff(np.searchsorted(teacher, sync))
    student_counts = np.diff(np.searchsorted(student, sync))
    one_teacher, one_student = teacher_counts == 1, student_counts == 1
    masks = (
        one_teacher & one_student,
        one_teacher & ~one_student,
        ~one_teacher & one_student,
        ~one_teacher & ~one_student,
    )
    positions = max(len(student) - 1, 1)
    shares = {name: float(student_counts[mask].sum()) / positions for name, mask in zip(RELATIONS, masks, strict=True)}
    shared = int(masks[0].sum())
    either = len(teacher) + len(student) - 2 - shared
    return SegmentationComparison(
        content_bytes=int(student[-1]),
        teacher_tokens=len(teacher) - 1,
        student_tokens=len(student) - 1,
        relation_shares=shares,
        span_jaccard=shared / either if either else 1.0,
    )
