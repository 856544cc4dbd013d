"""Bytes of ids, against what the tokenizers library itself decodes."""

import json

import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

from support.malformed_tokenizers import malformed
from support.real_tokenizers import REAL_TOKENIZERS, real_file_tokenizer, real_profile
from support.small_tokenizers import added_token, byte_level_spec, sentencepiece_spec
from tokbridge.errors import InvalidVocabularyError
from tokbridge.token_bytes import byte_level_alphabet, bytes_by_id, parse_tokenizer_json

NORMAL = ("qwen-3.5", "glm-4-9b-0414", "minimax", "llama2")
ALL = [pytest.param(n, marks=() if n in NORMAL else pytest.mark.nightly) for n in REAL_TOKENIZERS]


def test_the_alphabet_is_gpt2s():
    assert byte_level_alphabet() == {character: byte for byte, character in bytes_to_unicode().items()}


@pytest.mark.parametrize("name", ALL)
def test_real_tokens_spell_what_the_library_decodes(name):
    profile = real_profile(name)
    decode = real_file_tokenizer(name).decode_batch
    # Llama-2's decoder strips the first space of a text, so every token is decoded behind another one.
    before = profile.vocabulary.ids_by_bytes[b"x"]
    texts = {i: token.decode() for i, token in enumerate(profile.vocabulary.token_bytes) if token and _is_utf8(token)}
    added = {token["id"] for token in json.loads(profile.files.tokenizer_json)["added_tokens"]}
    ids = [i for i in texts if i not in added]
    decoded = decode([[before, i] for i in ids], skip_special_tokens=False)
    assert [text.removeprefix("x") for text in decoded] == [texts[i] for i in ids]
    assert len(ids) > 0.9 * (profile.tokenizer_size - len(added))


def _is_utf8(token):
    return token.decode(errors="replace").encode() == token


def test_sizes_are_the_published_ones():
    sizes = {"qwen-3.5": 248_077, "glm-4-9b-0414": 151_343, "minimax": 200_054, "llama2": 32_000}
    assert {name: real_profile(name).tokenizer_size for name in sizes} == sizes


def test_sentencepiece_pieces_become_spaces_and_bytes():
    spec = sentencepiece_spec()
    table = bytes_by_id(spec)
    vocab = spec["model"]["vocab"]
    assert {piece: table[vocab[piece]] for piece in ("▁", "▁a", "▁▁", "  ", "<0x0A>", "<0xFF>", "a")} == {
        "▁": b" ",
        "▁a": b" a",
        "▁▁": b"  ",
        "  ": b"  ",
        "<0x0A>": b"\n",
        "<0xFF>": b"\xff",
        "a": b"a",
    }
    assert bytes_by_id(sentencepiece_spec(byte_fallback=False))[vocab["<0x0A>"]] == b"<0x0A>"


def test_added_tokens_stand_for_their_literal_text():
    table = bytes_by_id(byte_level_spec(special=("<|end|>",), plain=("<th▁ink>", "õ")))
    assert [table[i] for i in (258, 259, 260)] == [b"<|end|>", "<th▁ink>".encode(), "õ".encode()]


def test_added_tokens_that_a_sentencepiece_vocabulary_lists_are_spelled_as_pieces():
    spec = sentencepiece_spec()
    runs = spec["model"]["vocab"]["▁▁"]
    spec["added_tokens"] += [added_token(runs, "▁▁", special=False), added_token(300, "▁x", special=False)]
    table = bytes_by_id(spec)
    assert table[runs] == b"  "
    assert table[300] == "▁x".encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"model": {"type": "WordPiece", "vocab": {}}}',
        '{"model": {"type": "BPE", "vocab": {"a": 99999999}}}',
    ],
)
def test_other_files_are_refused(text):
    with pytest.raises(InvalidVocabularyError):
        parse_tokenizer_json(text)


@malformed
def test_a_malformed_file_is_refused_where_it_is_parsed(change):
    with pytest.raises(InvalidVocabularyError):
        parse_tokenizer_json(json.dumps({**byte_level_spec(), **change}))


def test_a_refusal_names_the_field():
    text = json.dumps({**byte_level_spec(), "normalizer": {"type": "Sequence", "normalizers": [1]}})
    with pytest.raises(InvalidVocabularyError, match="a part of `normalizer` is not an object"):
        parse_tokenizer_json(text)


def test_a_deeply_nested_file_is_refused():
    part: dict = {"type": "NFC"}
    for _ in range(100):
        part = {"type": "Sequence", "normalizers": [part]}
    with pytest.raises(InvalidVocabularyError, match="deeper"):
        parse_tokenizer_json(json.dumps({**byte_level_spec(), "normalizer": part}))


def test_a_bpe_of_neither_family_is_refused():
    spec = byte_level_spec() | {"pre_tokenizer": {"type": "Whitespace"}, "decoder": None}
    with pytest.raises(InvalidVocabularyError, match="neither"):
        bytes_by_id(spec)
    spec = byte_level_spec()
    spec["model"]["vocab"]["語"] = 999
    with pytest.raises(InvalidVocabularyError, match="語"):
        bytes_by_id(spec)
