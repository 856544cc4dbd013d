"""Cases and flags of rows, on segmentations small enough to read."""

import numpy as np
import pytest

from tokbridge.targets import RowCase, RowFlag
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.alignment import align

STUDENT = ByteVocabulary((b"a", b"b", b"ab", b"ba", b"aba", b" ", b"\t ", None))
A, B, AB, BA, ABA, SPACE, TAB, CONTROL = range(8)


def segmentation_of(*tokens, non_canonical=()):
    boundaries = np.concatenate([[0], np.cumsum([len(token) for token in tokens], dtype=np.int64)])
    marked = np.isin(np.arange(len(tokens)), non_canonical)
    return Segmentation(np.zeros(len(tokens), np.int32), boundaries, marked)


def cases_of(segmentation, *student_ids, given_bytes=0, none_excluded=False):
    alignment = align(
        STUDENT,
        np.array(student_ids, np.int32),
        segmentation,
        given_bytes=given_bytes,
        none_excluded=none_excluded,
    )
    return [RowCase(case).name for case in alignment.cases], alignment


@pytest.mark.parametrize(
    ("tokens", "student_ids", "expected"),
    [
        ((b"ab", b"a"), (AB, A), ["ALIGNED", "ALIGNED"]),
        ((b"aba",), (A, BA), ["ALIGNED", "INTERIOR"]),
        ((b"a", b"ba"), (ABA,), ["SPANNING"]),
        ((b"ab", b"a"), (A, BA), ["ALIGNED", "SPANNING"]),
        ((b"ab", b"ab"), (A, BA, B), ["ALIGNED", "EXCLUDED", "INTERIOR"]),
        ((b"ab",), (AB, CONTROL), ["ALIGNED", "CONTROL"]),
        ((b"ab",), (CONTROL, A, CONTROL, B), ["CONTROL", "ALIGNED", "CONTROL", "INTERIOR"]),
        ((), (CONTROL,), ["CONTROL"]),
        ((), (), []),
    ],
)
def test_cases(tokens, student_ids, expected):
    assert cases_of(segmentation_of(*tokens), *student_ids)[0] == expected


def test_lookahead_excludes_no_row():
    assert cases_of(segmentation_of(b"ab", b"ab"), A, BA, B, none_excluded=True)[0] == [
        "ALIGNED",
        "SPANNING",
        "INTERIOR",
    ]


def test_rows_that_start_in_given_bytes_are_given_and_the_next_starts_inside_the_scored_ones():
    names, alignment = cases_of(segmentation_of(b"bab"), A, BA, AB, given_bytes=2)
    assert names == ["GIVEN", "GIVEN", "INTERIOR"]
    assert alignment.positions.tolist() == [-1, -1, 0]
    assert alignment.starts.tolist() == [-2, -1, 1]


def test_flags():
    _, alignment = cases_of(segmentation_of(b"a", b"b", b" \t ", non_canonical=[1]), A, B, SPACE, TAB)
    flags = [RowFlag(int(flag)) for flag in alignment.flags]
    assert flags == [RowFlag(0), RowFlag.NON_CANONICAL, RowFlag.WHITESPACE, RowFlag.WHITESPACE]


def test_a_spanning_row_is_non_canonical_if_any_of_its_teacher_tokens_is():
    _, alignment = cases_of(segmentation_of(b"a", b"b", b"a", non_canonical=[2]), ABA)
    assert alignment.flags.tolist() == [RowFlag.NON_CANONICAL]
