"""What makes two services replicas of one teacher: facts, and rows of one probe within a bound."""

from dataclasses import replace

import numpy as np
import pytest

from support.fake_teacher import TEACHER, expected_rows, make_student, nudged
from support.random_rows import random_rows
from tokbridge.client.agreement import Agreement
from tokbridge.client.probe import difference, probe_request
from tokbridge.errors import InvalidConfigError, TeacherMismatchError
from tokbridge.registration import StudentRegistration
from tokbridge.targets import RowCase, TargetRows
from tokbridge.vocabulary import ByteVocabulary

ROWS = expected_rows(probe_request(make_student(), TEACHER, "probe-1"))


def two_cells(first: float, rest: float = 0.0, token: int = 3) -> TargetRows:
    """One row: `first` on a token, what is left on token 7 but for a residual of `rest`."""
    cells = np.array([first, 1 - first - rest])
    return TargetRows(
        first_row=0,
        cases=np.array([RowCase.ALIGNED], np.uint8),
        flags=np.zeros(1, np.uint8),
        row_offsets=np.array([0, 2]),
        cell_ids=np.array([token, 7], np.int32),
        cell_log_probs=np.log(cells).astype(np.float32),
        residual_unmapped=np.array([rest], np.float32),
        residual_control=np.zeros(1, np.float32),
        residual_truncated=np.zeros(1, np.float32),
        emitted_log_prob=np.log(cells[:1]).astype(np.float32),
    )


def jensen_shannon(p, q):
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return sum((a * np.log(a / c) + b * np.log(b / c)) / 2 for a, b, c in zip(p, q, m, strict=True))


def test_the_divergence_is_the_one_of_the_book():
    found = difference(two_cells(0.8), two_cells(0.5))
    assert found.divergence == pytest.approx(jensen_shannon([0.8, 0.2], [0.5, 0.5]), abs=1e-6)
    assert found.log_prob == pytest.approx(np.log(0.8 / 0.5), abs=1e-6)


def test_tokens_that_only_one_row_holds_count_as_one_outcome():
    """Truncation may keep another last cell on another machine."""
    found = difference(two_cells(0.6, token=3), two_cells(0.6, token=4))
    assert found.divergence == pytest.approx(0.0, abs=1e-7)  # token 7 is shared, and 0.6 is elsewhere in both
    found = difference(two_cells(0.6, 0.1, token=3), two_cells(0.4, 0.1, token=4))
    assert found.divergence == pytest.approx(jensen_shannon([0.3, 0.7], [0.5, 0.5]), abs=1e-6)


def test_equal_rows_do_not_diverge_and_others_do():
    assert difference(ROWS, ROWS).divergence == 0
    assert difference(ROWS, nudged(ROWS, 1.0)).divergence > 0.01
    other = random_rows(np.random.default_rng(99), ROWS.num_rows, vocabulary_size=1000)
    assert difference(ROWS, other).divergence == float("inf")  # not even the cases agree


def test_the_first_instance_is_right_by_definition_and_its_like_is_admitted():
    agreement = Agreement(0.01)
    agreement.admit("a:1", TEACHER, ROWS)
    agreement.admit("b:1", replace(TEACHER, instance_id="other", device="cuda:0", version="0.1.9"), nudged(ROWS, 0.01))


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"vocabulary_fingerprint": "0" * 64},
        {"tokenizer_size": 11},
        {"head_size": 17},
        {"stop_ids": frozenset({8})},
        {"chat_template_hash": "d" * 64},
        {"context_length": 99},
        {"dtype": "bfloat16"},
        {"routings": frozenset()},
        {"spannings": frozenset()},
    ],
)
def test_facts_that_differ_are_named_with_both_replicas(change):
    agreement = Agreement(0.01)
    agreement.admit("a:1", TEACHER, ROWS)
    with pytest.raises(TeacherMismatchError, match=next(iter(change))) as raised:
        agreement.check("b:1", replace(TEACHER, **change))
    assert (raised.value.details["replica"], raised.value.details["reference"]) == ("b:1", "a:1")
    assert "b:1" in raised.value.message
    assert "a:1" in raised.value.message


def test_rows_over_the_bound_are_refused_and_rows_within_it_are_not():
    rows = nudged(ROWS, 0.2)
    divergence = difference(ROWS, rows).divergence
    for bound, admitted in ((divergence * 1.01, True), (divergence * 0.99, False)):
        agreement = Agreement(bound)
        agreement.admit("a:1", TEACHER, ROWS)
        if admitted:
            agreement.admit("b:1", TEACHER, rows)
            continue
        with pytest.raises(TeacherMismatchError, match="b:1 and a:1 are not replicas") as raised:
            agreement.admit("b:1", TEACHER, rows)
        assert raised.value.details["divergence"] == divergence
        assert raised.value.details["field"] == "probe"


def test_without_a_bound_rows_are_neither_asked_for_nor_compared():
    agreement = Agreement(None)
    assert not agreement.needs_probe
    agreement.admit("a:1", TEACHER, None)
    agreement.admit("b:1", TEACHER, None)


def test_a_refusal_that_both_give_is_agreement_and_one_that_one_gives_is_not():
    agreement = Agreement(0.01)
    agreement.admit("a:1", TEACHER, "chat_template_failed")
    agreement.admit("b:1", TEACHER, "chat_template_failed")
    for answer in ("context_length_exceeded", ROWS):
        with pytest.raises(TeacherMismatchError, match="chat_template_failed"):
            agreement.admit("c:1", TEACHER, answer)


def test_a_negative_bound_is_refused():
    with pytest.raises(InvalidConfigError):
        Agreement(-1.0)


def test_the_probe_is_the_same_for_all_and_spells_its_bytes():
    student = make_student()
    first, second = (probe_request(student, TEACHER, f"probe-{n}") for n in range(2))
    assert first.response == second.response
    student.vocabulary.check_spells(first.token_ids, first.response)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([b"A", b"A replica", b" ", b"s", None], b"A replica s  s "),
        ([b"\xff", b"\xfe", None], b"\xff\xfe"),
        ([b"zz", None, b"zz", None], b"zz"),
    ],
)
def test_a_probe_exists_for_every_vocabulary(tokens, expected):
    """Longest tokens first, what cannot be spelled left out; any tokens where nothing fits."""
    vocabulary = ByteVocabulary(tuple(tokens))
    stop_id = len(tokens) - 1
    request = probe_request(
        StudentRegistration("s", vocabulary, frozenset({stop_id}), stop_id, None), TEACHER, "probe-1"
    )
    vocabulary.check_spells(request.token_ids, request.response)
    assert request.response.startswith(expected)
    assert len(request.token_ids) <= 32
