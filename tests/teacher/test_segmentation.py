"""Segmentation is lossless for every byte string, and the tokenizer's own for ordinary text."""

import json
import pydoc_data.topics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.real_tokenizers import REAL_TOKENIZERS, real_content_tokenizer, real_file_tokenizer, real_profile
from support.small_tokenizers import byte_level_spec, chat_files, sentencepiece_spec, small_files
from tokbridge.errors import InvalidVocabularyError, UnspellableByteError
from tokbridge.tokenizer_profile import profile_from_files
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.segmentation import ContentTokenizer

NORMAL = ("qwen-3.5", "glm-4-9b-0414", "minimax", "llama2")
ALL = [pytest.param(n, marks=() if n in NORMAL else pytest.mark.nightly) for n in REAL_TOKENIZERS]
ENGLISH = "\n".join(pydoc_data.topics.topics.values())

ADVERSARIAL = {
    "empty": b"",
    "cut inside a character": "naïve 東京 🙂".encode()[:-1],
    "begins inside a character": "東京".encode()[1:],
    "lone continuation bytes": b"a\x80\x80b\xbf",
    "overlong and surrogates": b"\xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80",
    "never valid": bytes(range(0xF5, 0x100)) * 3,
    "all bytes": bytes(range(256)) * 2,
    "decomposed": "Cafe\u0301 e\u0323\u0301 \u1100\u1161\u11a8 ﬁ Å".encode(),
    "marks and joiners": "हिन्दी สวัสดี 👩‍👩‍👧‍👦 \u200b\u202e\ufeff".encode(),
    "the space mark": "▁a ▁▁ ▁▁▁▁ b▁".encode(),
    "byte pieces as text": b"<0x0A> <0xFF> <unk> <pad>",
    "blanks": b" \t\r\n\x0b\x0c\xc2\xa0\xe3\x80\x80 " * 40,
    "leading and trailing space": b"   a   ",
    "private use and noncharacters": "\ue000\uf8ff\ufffd\ufffe\U0010ffff\x00".encode(),
    "control texts": b"<|im_end|><|endoftext|></s><s>[gMASK]<sop>[e~[<|user|><eos><bos><end_of_turn>",
    "think tags": b"<think>\nx</think>\n\n<tool_call>{}</tool_call>",
}


def small_tokenizer(spec):
    profile = profile_from_files(small_files(spec))
    return ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)


def assert_lossless(tokenizer, content):
    """The bytes of the ids are the content, cut at the boundaries, or the missing byte is truly missing."""
    tokens = tokenizer.vocabulary.token_bytes
    try:
        found = tokenizer.segment(content)
    except UnspellableByteError as error:
        byte, offset = error.details["byte"], error.details["offset"]
        assert content[offset] == byte
        assert bytes([byte]) not in tokens
        return None
    cuts = [content[a:b] for a, b in zip(found.boundaries[:-1], found.boundaries[1:], strict=True)]
    assert [tokens[i] for i in found.ids] == cuts
    assert (found.boundaries[0], found.boundaries[-1]) == (0, len(content))
    assert found.ids.dtype == np.int32
    assert found.boundaries.dtype == np.int64
    assert (np.diff(found.boundaries)[found.non_canonical] == 1).all()
    return found


def random_contents(rng, count):
    """Byte strings of several kinds: noise, text with noise in it, text cut anywhere, runs."""
    text = (ENGLISH[:20_000] + "".join(text.decode(errors="ignore") for text in ADVERSARIAL.values())).encode()
    for i in range(count):
        start, size = rng.integers(len(text)), rng.integers(1, 60)
        piece = text[start : start + size]
        noise = rng.bytes(int(rng.integers(1, 24)))
        yield (noise, piece, piece + noise + piece, noise[:1] * size)[i % 4]


@pytest.mark.parametrize("name", ALL)
def test_adversarial_contents_round_trip(name):
    tokenizer = real_content_tokenizer(name)
    for content in ADVERSARIAL.values():
        assert_lossless(tokenizer, content)


@pytest.mark.parametrize("name", NORMAL)
def test_random_contents_round_trip(name):
    for content in random_contents(np.random.default_rng(1), 1_000):
        assert_lossless(real_content_tokenizer(name), content)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_a_hundred_thousand_random_contents_round_trip(name):
    for content in random_contents(np.random.default_rng(2), 100_000):
        assert_lossless(real_content_tokenizer(name), content)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("unit", [b"a", b" ", "é".encode(), b"\xff"])
def test_a_megabyte_of_one_character_round_trips(name, unit):
    content = unit * (1_000_000 // len(unit))
    vocabulary = real_content_tokenizer(name).vocabulary
    if unit == b"\xff" and unit not in vocabulary.ids_by_bytes:
        with pytest.raises(UnspellableByteError):
            real_content_tokenizer(name).segment(content)
        return
    assert vocabulary.content_of(real_content_tokenizer(name).segment(content).ids) == content


@pytest.mark.parametrize("name", ALL)
def test_ordinary_text_is_segmented_as_the_file_says(name):
    text = ENGLISH[:30_000] + "\nNaïve 東京, emoji 🙂: x = [1234567, 'abc']\n"
    found = assert_lossless(real_content_tokenizer(name), (" " + text if name == "llama2" else text).encode())
    assert found.ids.tolist() == real_file_tokenizer(name).encode(text, add_special_tokens=False).ids
    assert not found.non_canonical.any()


@pytest.mark.parametrize("name", NORMAL)
def test_control_texts_stay_text_and_plain_added_tokens_are_tokens(name):
    profile = real_profile(name)
    for text in list(profile.control_ids)[:50]:
        found = assert_lossless(real_content_tokenizer(name), f"a{text}b {text}".encode())
        assert not set(found.ids.tolist()) & set(profile.control_ids.values())


def test_think_tags_are_single_tokens():
    for name in ("qwen-3.5", "minimax"):
        profile = real_profile(name)
        found = real_content_tokenizer(name).segment(b"<think>\nok</think>")
        assert profile.vocabulary.token_bytes[found.ids[0]] == b"<think>"
        assert profile.vocabulary.token_bytes[found.ids[-1]] == b"</think>"


def test_decomposed_text_keeps_its_bytes():
    content = "Cafe\u0301".encode()
    found = assert_lossless(small_tokenizer(byte_level_spec()), content)
    assert not found.non_canonical.any()


def test_invalid_bytes_are_single_tokens_and_flagged():
    found = assert_lossless(small_tokenizer(byte_level_spec()), b"he\xffll\xe6\x9d")
    assert np.diff(found.boundaries).tolist() == [2, 1, 2, 1, 1]
    assert found.non_canonical.tolist() == [False, True, False, True, True]


def test_a_missing_byte_names_itself_and_its_offset():
    tokenizer = small_tokenizer(byte_level_spec(without=(0x04, 0xE6)))
    for content, byte, offset in ((b"he\x04ll", 0x04, 2), ("é東".encode(), 0xE6, 2), (b"\xff\xff\xe6", 0xE6, 2)):
        with pytest.raises(UnspellableByteError) as raised:
            tokenizer.segment(content)
        assert raised.value.details == {"byte": byte, "offset": offset}


def test_the_literal_space_mark_is_spelled_in_bytes():
    found = assert_lossless(small_tokenizer(sentencepiece_spec()), "a ▁a".encode())
    assert found.non_canonical.tolist() == [False, False, True, True, True, False]


def test_unknown_characters_without_byte_fallback_are_spelled_or_refused():
    spec = sentencepiece_spec(byte_fallback=False)
    with pytest.raises(UnspellableByteError) as raised:
        small_tokenizer(spec).segment(b"ab c")
    assert raised.value.details == {"byte": ord("c"), "offset": 3}


def test_no_space_is_put_in_front():
    found = small_tokenizer(sentencepiece_spec()).segment(b"a a")
    assert np.diff(found.boundaries).tolist() == [1, 2]


def test_stripping_added_tokens_do_not_eat_spaces():
    spec = byte_level_spec(plain=("<x>",))
    spec["added_tokens"][0] |= {"lstrip": True, "rstrip": True}
    found = assert_lossless(small_tokenizer(spec), b"he <x> ll")
    assert 259 in found.ids


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"normalizer": {"type": "NFKC"}},
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
    ],
)
def test_parts_that_change_bytes_are_left_out(change):
    found = assert_lossless(small_tokenizer(byte_level_spec() | change), "  HeLL ﬁ he  ".encode())
    assert not found.non_canonical.any()


@given(st.binary(max_size=80))
@settings(max_examples=300)
def test_any_bytes_round_trip_in_both_families(content):
    for tokenizer in SMALL:
        assert_lossless(tokenizer, content)


@given(st.text(st.sampled_from("a b▁<0xAé>\u0301\n"), max_size=40))
@settings(max_examples=300)
def test_any_text_round_trips_in_both_families(text):
    for tokenizer in SMALL:
        assert_lossless(tokenizer, text.encode())


SMALL = [small_tokenizer(byte_level_spec(plain=("<0x0A>", "▁a"))), small_tokenizer(sentencepiece_spec())]


def test_first_tokens_are_the_encoders():
    strings = [b"hello", b"he", "é".encode(), b"\xff", b"", b"<|im_end|>", b"<think>x", b"a\xc3"]
    profile = profile_from_files(chat_files())
    tokenizer = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)
    firsts = tokenizer.first_tokens(strings)
    assert firsts.dtype == np.int32
    expected = [b"he", b"he", b"\xc3", None, None, b"<", b"<think>", None]
    assert [None if i < 0 else profile.vocabulary.token_bytes[i] for i in firsts] == expected


def test_first_tokens_that_do_not_spell_are_refused():
    tokenizer = small_tokenizer(sentencepiece_spec())
    assert (tokenizer.first_tokens(["▁a".encode(), b" a", b"a"]) >= 0).tolist() == [False, True, True]


def test_a_broken_tokenizer_file_is_a_typed_error():
    spec = byte_level_spec()
    spec["model"]["merges"] = ["no such"]
    with pytest.raises(InvalidVocabularyError):
        ContentTokenizer(json.dumps(spec), ByteVocabulary((b"a",)))
