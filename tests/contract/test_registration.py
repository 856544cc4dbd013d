"""Registrations: round trips, content addresses, and streams that lie."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_teacher import LIMITS
from support.real_tokenizers import real_tokenizer_folder
from tokbridge.errors import InvalidRequestError, InvalidVocabularyError, LimitExceededError, TokbridgeError
from tokbridge.registration import PIECE_BYTES, StudentRegistration
from tokbridge.registration_reader import RegistrationReader
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.v1 import teacher_pb2
from tokbridge.vocabulary import ByteVocabulary
from tokbridge.vocabulary_wire import pack_tokenizer, unpack_tokenizer, unpack_vocabulary

WIDE = replace(LIMITS, max_vocabulary_bytes=2**30, max_vocabulary_size=2**20)
SMALL = StudentRegistration(
    "small", ByteVocabulary((b"a", None, b"a", b"bc", None)), frozenset({1}), 1, '{"model": "é"}'
)
vocabularies = st.lists(st.none() | st.binary(min_size=1, max_size=5), min_size=1, max_size=40).map(
    lambda tokens: ByteVocabulary((*tokens, None))
)


def registration_of(vocabulary: ByteVocabulary, tokenizer_json: str | None = None) -> StudentRegistration:
    stop_id = vocabulary.size - 1
    return StudentRegistration("any", vocabulary, frozenset({stop_id}), stop_id, tokenizer_json)


def assert_same(a: StudentRegistration, b: StudentRegistration) -> None:
    assert (a.name, a.stop_ids, a.turn_end_id, a.tokenizer_json) == (
        b.name,
        b.stop_ids,
        b.turn_end_id,
        b.tokenizer_json,
    )
    assert a.vocabulary.token_bytes == b.vocabulary.token_bytes
    np.testing.assert_array_equal(a.vocabulary.canonical_ids, b.vocabulary.canonical_ids)
    assert a.student_id == b.student_id


@given(vocabularies, st.none() | st.text(min_size=1))
def test_round_trip(vocabulary, tokenizer_json):
    registration = registration_of(vocabulary, tokenizer_json)
    assert_same(StudentRegistration.from_messages(registration.to_messages(), WIDE), registration)


async def test_round_trip_as_the_messages_arrive():
    async def arriving():
        for message in SMALL.to_messages():
            yield message

    assert_same(await StudentRegistration.from_stream(arriving(), WIDE), SMALL)


def test_large_payloads_travel_in_pieces_of_a_mebibyte():
    tokens = tuple(bytes([i % 251]) * 400 + i.to_bytes(4, "big") for i in range(8000))
    registration = registration_of(ByteVocabulary((*tokens, None)))
    messages = list(registration.to_messages())
    assert len(messages) > 4
    assert max(len(message.chunk) for message in messages) == PIECE_BYTES
    assert_same(StudentRegistration.from_messages(messages, WIDE), registration)


def test_a_canonical_id_that_is_not_the_lowest_survives():
    vocabulary = ByteVocabulary((b"a", b"a", None), np.array([1, 1, -1], np.int32))
    registration = registration_of(vocabulary)
    assert_same(StudentRegistration.from_messages(registration.to_messages(), WIDE), registration)


def test_every_part_changes_the_address():
    variants = [
        SMALL,
        replace(SMALL, name="other"),
        replace(SMALL, stop_ids=frozenset({1, 4})),
        replace(SMALL, stop_ids=frozenset({1, 4}), turn_end_id=4),
        replace(SMALL, tokenizer_json=None),
        replace(SMALL, vocabulary=ByteVocabulary((b"a", None, b"a", b"bd", None))),
        replace(SMALL, vocabulary=ByteVocabulary((b"ab", None, b"a", b"c", None))),
        replace(SMALL, vocabulary=ByteVocabulary((b"a", None, b"a", None, b"bc"))),
        replace(SMALL, vocabulary=ByteVocabulary(SMALL.vocabulary.token_bytes, np.array([2, -1, 2, 3, -1], np.int32))),
    ]
    assert len({variant.student_id for variant in variants}) == len(variants)
    assert replace(SMALL).student_id == SMALL.student_id


def altered(**header) -> list[teacher_pb2.RegisterStudentRequest]:
    messages = list(SMALL.to_messages())
    for name, value in header.items():
        if isinstance(value, list):
            messages[0].header.ClearField(name)
            getattr(messages[0].header, name).extend(value)
        else:
            setattr(messages[0].header, name, value)
    return messages


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], InvalidRequestError),
        (altered()[:-1], InvalidRequestError),
        (altered()[1:], InvalidRequestError),
        ([altered()[0], *altered()], InvalidRequestError),
        ([*altered(), altered()[-1]], InvalidRequestError),
        ([teacher_pb2.RegisterStudentRequest()], InvalidRequestError),
        (altered(name="x" * 256), InvalidRequestError),
        (altered(name="a\nb"), InvalidRequestError),
        (altered(name="other"), InvalidRequestError),
        (altered(student_id="0" * 64), InvalidRequestError),
        (altered(vocabulary_size=4), InvalidRequestError),
        (altered(vocabulary_size=0), InvalidRequestError),
        (altered(token_bytes_bytes=3), InvalidRequestError),
        (altered(stop_ids=[0]), InvalidVocabularyError),
        (altered(stop_ids=[99]), InvalidVocabularyError),
        (altered(stop_ids=[]), InvalidVocabularyError),
        (altered(turn_end_id=4), InvalidVocabularyError),
        (altered(vocabulary_size=2**31), LimitExceededError),
        (altered(token_bytes_bytes=2**40), LimitExceededError),
        (altered(tokenizer_json_bytes=2**40), LimitExceededError),
    ],
)
def test_streams_that_are_not_registrations_are_refused(messages, error):
    with pytest.raises(error):
        StudentRegistration.from_messages(messages, WIDE)


def test_limits_are_checked_on_the_header_before_any_payload():
    reader = RegistrationReader(replace(LIMITS, max_vocabulary_size=4))
    with pytest.raises(LimitExceededError) as raised:
        reader.feed(next(SMALL.to_messages()))
    assert raised.value.details == {"name": "vocabulary_size", "value": 5, "limit": 4}


def int32(*values) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.mark.parametrize(
    ("lengths", "canonical"),
    [
        ([1, 1, -1], [0, 1, -1]),  # two canonical ids for one byte string
        ([1, 1, -1], [1, 0, -1]),  # each points at the other
        ([1, 1, -1], [0, 0, 0]),  # a control token has no canonical id
        ([1, 1, -1], [0, 3, -1]),
        ([1, 1, -1], [0, -1, -1]),
        ([2, 0, -1], [0, 1, -1]),
        ([2, -2, -1], [0, -1, -1]),
        ([1, 2, -1], [0, 0, -1]),
    ],
)
def test_tables_that_do_not_make_a_vocabulary_are_refused(lengths, canonical):
    with pytest.raises(InvalidVocabularyError):
        unpack_vocabulary(int32(*lengths), b"aa", int32(*canonical))


@given(
    st.lists(st.integers(-2, 3), min_size=1, max_size=5),
    st.lists(st.integers(-2, 5), min_size=5, max_size=5),
    st.binary(),
)
def test_arbitrary_tables_make_a_sound_vocabulary_or_are_refused(lengths, canonical, content):
    try:
        vocabulary = unpack_vocabulary(int32(*lengths), content, int32(*canonical[: len(lengths)]))
    except TokbridgeError:
        return
    for token_id, token in enumerate(vocabulary.token_bytes):
        if token is not None:
            assert vocabulary.canonical_ids[token_id] == vocabulary.ids_by_bytes[token]


def test_a_tokenizer_never_expands_past_its_limit():
    bomb = zlib.compress(b" " * 2**24)
    with pytest.raises(LimitExceededError):
        unpack_tokenizer(bomb, max_bytes=2**20)
    assert unpack_tokenizer(zlib.compress(b"x" * 2**20), max_bytes=2**20) == "x" * 2**20


def test_a_limit_that_falls_inside_a_character_is_still_a_limit():
    with pytest.raises(LimitExceededError):
        unpack_tokenizer(zlib.compress("é".encode() * 10), max_bytes=8)


@pytest.mark.parametrize(
    "payload", [b"not zlib", pack_tokenizer("abc")[:-1], pack_tokenizer("abc") + b"x", zlib.compress(b"\xff")]
)
def test_broken_tokenizer_payloads_are_refused(payload):
    with pytest.raises(InvalidRequestError):
        unpack_tokenizer(payload)


def test_no_tokenizer_is_an_empty_payload():
    assert pack_tokenizer(None) == b""
    assert unpack_tokenizer(b"") is None


@pytest.mark.nightly
def test_a_real_tokenizer_becomes_a_registration():
    profile = load_tokenizer(real_tokenizer_folder("glm-z1-9b-0414"))
    registration = StudentRegistration.from_profile(profile)
    registration.check_stops()
    limits = replace(WIDE, max_vocabulary_size=registration.vocabulary.size)
    assert_same(StudentRegistration.from_messages(registration.to_messages(), limits), registration)
