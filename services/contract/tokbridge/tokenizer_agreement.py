"""Whether a `tokenizer.json` is the tokenizer of a byte vocabulary; routing `bpe` would fall back in silence if not.

Ids that a vocabulary holds as control tokens may be anything in the file. A few content ids may be missing from it:
`tokenizer_config.json` can add tokens of its own (Qwen3.5 has seven).
"""

from __future__ import annotations

from tokbridge.errors import InvalidVocabularyError
from tokbridge.token_bytes import bytes_by_id, parse_tokenizer_json
from tokbridge.vocabulary import ByteVocabulary

_UNLISTED_SHARE = 0.01
"""Of the content ids, those that the file need not have."""


def check_same_vocabulary(tokenizer_json: str, vocabulary: ByteVocabulary) -> None:
    """Compare the bytes of every content id.

    Raises:
        InvalidVocabularyError: the file is not readable, gives an id other bytes, has ids that the vocabulary does not
            have, or lacks some that it has.
    """
    in_file = bytes_by_id(parse_tokenizer_json(tokenizer_json))
    for i, token in in_file.items():
        if i >= vocabulary.size:
            raise InvalidVocabularyError(
                f"the tokenizer has the id {i}; the registered vocabulary ends at {vocabulary.size - 1}", token_id=i
            )
        registered = vocabulary.token_bytes[i]
        if registered is not None and registered != token:
            raise InvalidVocabularyError(f"id {i} has other bytes in the tokenizer than were registered", token_id=i)
    content = [i for i, token in enumerate(vocabulary.token_bytes) if token is not None]
    missing = [i for i in content if i not in in_file]
    if len(missing) > _UNLISTED_SHARE * len(content):
        raise InvalidVocabularyError(
            f"the tokenizer lacks {len(missing)} of {len(content)} registered content ids", token_id=missing[0]
        )
