"""Two segmentations of the same bytes → the case of every student row (spec §5). Array code throughout, no loop over
rows.

Knows offsets and lengths; nothing of routing or probabilities.

Axes: N student content ids, M teacher tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokbridge.targets import RowCase, RowFlag
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.segmentation import Segmentation


@dataclass(frozen=True, eq=False)
class Alignment:
    """Where each student token lies. Offsets count from the first scored byte; given bytes precede it."""

    cases: NDArray[np.uint8]
    """[N], `RowCase`."""
    flags: NDArray[np.uint8]
    """[N], `RowFlag` without `CHAIN`."""
    starts: NDArray[np.int64]
    """[N], o of the spec; negative inside given bytes."""
    ends: NDArray[np.int64]
    """[N], e of the spec."""
    positions: NDArray[np.int64]
    """[N], j: the teacher token that holds the first byte; −1 for control and given rows."""


def align(
    student: ByteVocabulary,
    student_ids: NDArray[np.int32],
    segmentation: Segmentation,
    *,
    given_bytes: int,
    none_excluded: bool,
) -> Alignment:
    """Find the case of each of the N rows.

    `segmentation` covers the content after its first `given_bytes` bytes. With `none_excluded` (spanning `lookahead`)
    rows that end at no sync point are spanning rows like the others.
    """
    boundaries = np.asarray(segmentation.boundaries, np.int64)
    lengths = student.lengths[student_ids].astype(np.int64)
    is_control = lengths < 0
    lengths[is_control] = 0
    ends = np.cumsum(lengths) - given_bytes
    starts = ends - lengths
    has_position = ~is_control & (starts >= 0)
    positions = np.where(has_position, np.searchsorted(boundaries, starts, side="right") - 1, -1)
    cases = _cases(boundaries, starts, ends, positions, none_excluded)
    cases[~has_position] = RowCase.GIVEN
    cases[is_control] = RowCase.CONTROL
    flags = np.where(student.is_whitespace[student_ids], RowFlag.WHITESPACE, 0)
    flags |= np.where(has_position & _touches(segmentation, starts, ends), RowFlag.NON_CANONICAL, 0)
    return Alignment(cases, flags.astype(np.uint8), starts, ends, positions)


def _cases(
    boundaries: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    positions: NDArray[np.int64],
    none_excluded: bool,
) -> NDArray[np.uint8]:
    """Cases [N] as if every row had a position."""
    last = len(boundaries) - 1
    at_boundary = boundaries[positions] == starts
    inside = ends <= boundaries[np.minimum(positions + 1, last)]
    at_sync = boundaries[np.minimum(np.searchsorted(boundaries, ends), last)] == ends
    spans = np.where(at_boundary | at_sync | none_excluded, RowCase.SPANNING, RowCase.EXCLUDED)
    return np.where(inside, np.where(at_boundary, RowCase.ALIGNED, RowCase.INTERIOR), spans).astype(np.uint8)


def _touches(segmentation: Segmentation, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a row shares a byte with a teacher token that is marked non-canonical: [N]."""
    boundaries = np.asarray(segmentation.boundaries, np.int64)
    marked = np.concatenate([[0], np.cumsum(segmentation.non_canonical)])
    first = np.maximum(np.searchsorted(boundaries, starts, side="right") - 1, 0)
    behind = np.maximum(np.searchsorted(boundaries, ends, side="left"), first)
    behind = np.minimum(behind, len(marked) - 1)
    return marked[behind] > marked[np.minimum(first, len(marked) - 1)]
