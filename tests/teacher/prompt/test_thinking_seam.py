"""The four cases of spec §3.2, and that no opening is lost or doubled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge_teacher.prompt.thinking_seam import Seam, SettledSeam, lacks_opening, settle, settle_switched_off

OFF = "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("student_tail", "teacher_tail", "response", "expected"),
    [
        ("", "", b"four", SettledSeam(Seam.NONE, True)),
        ("", "", b"<think>\nfour", SettledSeam(Seam.NONE, True)),
        ("<think>\n", "<think>\n", b"four", SettledSeam(Seam.SHARED, True)),
        ("<think>\n", "<think>", b"four", SettledSeam(Seam.CONTEXT, True, context="\n")),
        ("<think>\n", "", b"four", SettledSeam(Seam.CONTEXT, True, context="<think>\n")),
        (OFF, "<think>\n", b"four", SettledSeam(Seam.CONTEXT, True, context="\n</think>\n\n")),
        ("", "<think>\n", b"<think>\nfour", SettledSeam(Seam.GIVEN, True, given_bytes=8)),
        ("<think>", "<think>\n", b"\nfour", SettledSeam(Seam.GIVEN, True, given_bytes=1)),
        ("<think>", "<think>\n", b"four", SettledSeam(Seam.CUT, False, context="<think>")),
        ("", "<think>\n", b"<think>four", SettledSeam(Seam.CUT, False)),
        ("<think>\n", "</think>", b"four", SettledSeam(Seam.CUT, False, context="<think>\n")),
    ],
)
def test_seams(student_tail, teacher_tail, response, expected):
    assert not lacks_opening(student_tail, teacher_tail, response)
    assert settle(student_tail, teacher_tail, response) == expected


@pytest.mark.parametrize(
    ("student_tail", "teacher_tail", "response"),
    [("", "<think>\n", b"four"), ("", "<think>", b""), ("</think>", "<think>\n", b"four"), ("", "</think>", b"four")],
)
def test_responses_without_an_opening(student_tail, teacher_tail, response):
    assert lacks_opening(student_tail, teacher_tail, response)


@pytest.mark.parametrize(
    ("student_tail", "off_tail", "context"),
    [
        ("", OFF, ""),
        ("", "", ""),
        ("</think>", OFF, ""),
        ("</think>\n", "</think>", "\n"),
        ("</think>", "", "</think>"),
    ],
)
def test_switched_off_prompts(student_tail, off_tail, context):
    assert settle_switched_off(student_tail, off_tail) == SettledSeam(Seam.SWITCHED_OFF, True, context=context)


def test_a_switch_that_leaves_thinking_open_is_none():
    assert settle_switched_off("", "<think>\n") is None


TAILS = st.sampled_from(["", "<think>", "<think>\n", OFF])
RESPONSES = st.sampled_from([b"", b"four", b"\nfour", b"<think>four", b"<think>\nfour</think>", b"\n</think>"])


@given(TAILS, TAILS, RESPONSES)
def test_what_the_teacher_reads_is_what_was_agreed(student_tail, teacher_tail, response):
    if lacks_opening(student_tail, teacher_tail, response):
        return
    settled = settle(student_tail, teacher_tail, response)
    tail = teacher_tail if settled.keeps_teacher_tail else ""
    read = tail.encode() + settled.context.encode() + response[settled.given_bytes :]
    assert read == student_tail.encode() + response
