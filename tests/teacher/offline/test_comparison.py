"""Relations and span Jaccard against a count that walks the chunks one by one."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokbridge_teacher.offline.comparison import RELATIONS, compare_boundaries


def walk(teacher, student):
    """Relations counted chunk by chunk, with sets."""
    sync = sorted(set(teacher) & set(student))
    counts = dict.fromkeys(RELATIONS, 0)
    for start, end in itertools.pairwise(sync):
        m = sum(start <= offset < end for offset in teacher[:-1])
        n = sum(start <= offset < end for offset in student[:-1])
        name = {(True, True): "1:1", (True, False): "1:N", (False, True): "N:1", (False, False): "M:N"}[m == 1, n == 1]
        counts[name] += n
    spans = [set(itertools.pairwise(cuts)) for cuts in (teacher, student)]
    return counts, len(spans[0] & spans[1]) / len(spans[0] | spans[1])


boundaries = st.integers(1, 30).flatmap(
    lambda n: st.tuples(*[st.sets(st.integers(0, n)).map(lambda cuts: sorted(cuts | {0, n})) for _ in range(2)])
)


@given(boundaries)
def test_equals_the_walk(both):
    teacher, student = both
    comparison = compare_boundaries(np.array(teacher), np.array(student))
    counts, jaccard = walk(teacher, student)
    assert comparison.span_jaccard == jaccard
    for name in RELATIONS:
        assert abs(comparison.relation_shares[name] * (len(student) - 1) - counts[name]) < 1e-9


def test_the_examples_of_table_d2():
    # teacher "10" -> student "1" "0"; teacher "bit" "mask" -> student "bitmask"
    assert compare_boundaries(np.array([0, 2]), np.array([0, 1, 2])).relation_shares["1:N"] == 1.0
    assert compare_boundaries(np.array([0, 3, 7]), np.array([0, 7])).relation_shares["N:1"] == 1.0
