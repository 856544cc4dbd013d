"""A real SentencePiece tokenizer out of a GGUF file, beside the same model's own `tokenizer.json`."""

import random

import pytest

from support.real_tokenizers import gemma3_gguf_folder, real_content_tokenizer, real_profile
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.segmentation import ContentTokenizer

TEXTS = (
    "hello world",
    "  two  spaces\n\n\ttab",
    "e\u0301 naïve 日本語 👩\u200d🔬",
    "<bos><start_of_turn>user",
    "1234567 π≈3.14159",
    "a" * 999,
)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_it_is_the_vocabulary_of_the_models_own_file_and_segments_like_it():
    profile, own = load_tokenizer(gemma3_gguf_folder()), real_profile("gemma3")
    pairs = list(zip(profile.vocabulary.token_bytes, own.vocabulary.token_bytes, strict=False))
    # The files differ in which of the reserved tokens are control tokens, and in nothing else.
    assert all(ours == theirs for ours, theirs in pairs if ours is not None and theirs is not None)
    assert sum(ours == theirs is not None for ours, theirs in pairs) > 255_000
    encoder, own_encoder = (
        ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary),
        real_content_tokenizer("gemma3"),
    )
    for text in TEXTS:
        assert encoder.segment(text.encode()).ids.tolist() == own_encoder.segment(text.encode()).ids.tolist()
    generator = random.Random(0)
    for _ in range(2000):
        content = generator.randbytes(generator.randrange(1, 60))
        assert profile.vocabulary.content_of(encoder.segment(content).ids) == content
