import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge.errors import InvalidVocabularyError, TokenIdOutOfRangeError, TokensDoNotSpellResponseError
from tokbridge.vocabulary import ByteVocabulary

VOCABULARY = ByteVocabulary((b"a", b"b", None, b"ab", b"a", b" \t", None))


def test_lengths_and_whitespace_say_minus_one_and_false_of_control_tokens():
    assert VOCABULARY.size == 7
    assert VOCABULARY.lengths.tolist() == [1, 1, -1, 2, 1, 2, -1]
    assert VOCABULARY.is_whitespace.tolist() == [False] * 5 + [True, False]


def test_doubled_bytes_get_the_lowest_id_unless_told_otherwise():
    assert VOCABULARY.canonical_ids.tolist() == [0, 1, -1, 3, 0, 5, -1]
    assert VOCABULARY.ids_by_bytes == {b"a": 0, b"b": 1, b"ab": 3, b" \t": 5}
    told = ByteVocabulary(VOCABULARY.token_bytes, np.array([4, 1, -1, 3, 4, 5, -1], np.int32))
    assert told.ids_by_bytes[b"a"] == 4


@pytest.mark.parametrize(
    "canonical",
    [[0], [1, 1, -1, 3, 0, 5, -1], [0, 1, 2, 3, 0, 5, -1], [0, 1, -1, 3, 9, 5, -1], [4, 1, -1, 3, 0, 5, -1]],
)
def test_contradicting_canonical_ids_are_refused(canonical):
    with pytest.raises(InvalidVocabularyError):
        ByteVocabulary(VOCABULARY.token_bytes, np.array(canonical, np.int32))


def test_an_empty_content_token_is_refused():
    with pytest.raises(InvalidVocabularyError, match="token 1 "):
        ByteVocabulary((b"a", b""))


def test_the_fingerprint_sees_bytes_places_control_ids_and_size():
    variants = [(b"ab", b"c"), (b"a", b"bc"), (b"c", b"ab"), (b"ab", b"c", None), (b"ab", None, b"c"), (b"ab", b"d")]
    prints = [ByteVocabulary(tokens).fingerprint for tokens in variants]
    assert len(set(prints)) == len(variants)
    assert prints[0] == ByteVocabulary((b"ab", b"c")).fingerprint


def test_control_tokens_contribute_no_bytes():
    assert VOCABULARY.content_of([3, 2, 0, 6, 5]) == b"aba \t"
    VOCABULARY.check_spells(np.array([2, 0, 1]), b"ab")


@pytest.mark.parametrize(("ids", "index"), [([0, 7], 1), ([-1], 0), ([0, 2**40], 1)])
def test_ids_out_of_range_name_themselves(ids, index):
    with pytest.raises(TokenIdOutOfRangeError) as raised:
        VOCABULARY.content_of(ids)
    assert raised.value.details == {"token_id": ids[index], "index": index, "vocabulary_size": 7}


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5])), st.binary(max_size=12))
def test_the_first_differing_offset_is_named(ids, content):
    spelled = b"".join(VOCABULARY.token_bytes[i] or b"" for i in ids)
    if spelled == content:
        VOCABULARY.check_spells(ids, content)
        return
    offset = 0
    while offset < min(len(spelled), len(content)) and spelled[offset] == content[offset]:
        offset += 1
    with pytest.raises(TokensDoNotSpellResponseError) as raised:
        VOCABULARY.check_spells(ids, content)
    assert raised.value.details["offset"] == offset
