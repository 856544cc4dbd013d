"""Tokenizers of callers that would keep a thread busy for hours, or fill the memory."""

import gc
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokbridge.errors import InvalidVocabularyError
from tokbridge.modes import Routing
from tokbridge.tokenizer_agreement import check_same_vocabulary
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher import segmentation
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.students import StudentRegistry, pair_compiler


def changed(registration, **changes) -> str:
    return json.dumps({**json.loads(registration.tokenizer_json), **changes})


def test_a_space_that_is_replaced_by_a_long_text_is_no_text_to_the_encoder(student_registration):
    """A megabyte for each of the teacher's tokens that begin with a space would be gigabytes."""
    bomb = {"type": "Replace", "pattern": {"String": " "}, "content": "x" * (1 << 20)}
    tokenizer = ContentTokenizer(changed(student_registration, normalizer=bomb), student_registration.vocabulary)
    plain = ContentTokenizer(student_registration.tokenizer_json, student_registration.vocabulary)
    strings = [b" she sells", b"sea shells " * 50] * 100
    np.testing.assert_array_equal(tokenizer.first_tokens(strings), plain.first_tokens(strings))


def with_expression(registration, expression: str) -> str:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return changed(registration, pre_tokenizer={"type": "Sequence", "pretokenizers": [split, byte_level]})


def test_an_expression_that_backtracks_without_end_is_refused(student_registration):
    text = with_expression(student_registration, "(-+)+x")
    tokenizer = ContentTokenizer(text, student_registration.vocabulary)
    with pytest.raises(InvalidVocabularyError):
        tokenizer.first_tokens([b"-" * 128])


def test_expressions_that_are_slow_on_every_string_are_given_up(student_registration, monkeypatch):
    monkeypatch.setattr(segmentation, "MAX_ENCODE_S", 0.2)
    monkeypatch.setattr(segmentation, "_SLICE", 2)
    text = with_expression(student_registration, "(-+)+x")
    tokenizer = ContentTokenizer(text, student_registration.vocabulary)
    started = time.monotonic()
    with pytest.raises(InvalidVocabularyError):
        tokenizer.first_tokens([b"-" * 18] * 20_000)
    assert time.monotonic() - started < 60


def test_a_tokenizer_may_lack_a_few_tokens_that_its_config_added(student_registration):
    tokens = student_registration.vocabulary.token_bytes
    check_same_vocabulary(student_registration.tokenizer_json, ByteVocabulary((*tokens, b"<added>", b"<too>")))
    many = tuple(b"<added %d>" % number for number in range(20))
    with pytest.raises(InvalidVocabularyError, match="lacks 20"):
        check_same_vocabulary(student_registration.tokenizer_json, ByteVocabulary((*tokens, *many)))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_tokenizers_that_are_forgotten_leave_no_memory_behind(teacher_profile, student_registration):
    """Found by fuzzing: 64 kB a registration, in a cache that the tokenizers library never frees."""
    registry = StudentRegistry(pair_compiler(teacher_profile.vocabulary, None), device="cpu", max_students=2)

    def register(numbers: range) -> int:
        for number in numbers:
            student, _ = registry.register(replace(student_registration, name=str(number)))
            student.tables(Routing.BPE)
        gc.collect()
        return resident_bytes()

    settled = register(range(60))
    assert register(range(60, 260)) - settled < 200 * (16 << 10)
