"""Faults of the tokenizers library on a `tokenizer.json` that is none of its own making, as a typed error.

The library is Rust: what it did not foresee is a panic, which Python sees as a `BaseException` that nothing catches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokbridge.errors import InvalidVocabularyError

_PANIC = "PanicException"


@contextmanager
def tokenizer_faults() -> Iterator[None]:
    """Around every call of a tokenizer that a caller sent.

    Raises:
        InvalidVocabularyError: the library panicked.
    """
    try:
        yield
    except BaseException as error:  # a panic is nothing narrower
        if not is_panic(error):
            raise
        raise InvalidVocabularyError("the tokenizers library fails on this tokenizer.json") from error


def is_panic(error: BaseException) -> bool:
    """Whether Rust code panicked; its exception has no module to import it from."""
    return type(error).__name__ == _PANIC
