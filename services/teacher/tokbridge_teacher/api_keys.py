"""API keys: who may call, and with which share. Knows no protocol and no file.

A key file has one line a key, `NAME:SHARE:KEY`; empty lines and lines that begin with `#` are left out. One name may
have several keys, so a new key can be handed out before the old one goes. Only digests of keys are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.callers import ANONYMOUS, Caller

MIN_KEY_LENGTH = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(rf"[!-~]{{{MIN_KEY_LENGTH},1024}}")


@dataclass(frozen=True)
class ApiKey:
    """One key of one caller."""

    caller: Caller
    digest: bytes = field(repr=False)
    """SHA-256 of the key."""


class ApiKeys:
    """The keys that are valid now; immutable."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"ApiKeys({', '.join(key.caller.name for key in self._keys)})"

    def caller(self, key: str) -> Caller | None:
        """Whose key this is; None if nobody's. Every key is compared, each in constant time."""
        digest = _digest(key)
        found = None
        for known in self._keys:
            if hmac.compare_digest(known.digest, digest):
                found = known.caller
        return found

    @classmethod
    def parse(cls, text: str, source: str) -> ApiKeys:
        """The keys of a key file's text.

        Args:
            text: as the head of this module says.
            source: what errors call it; they never hold any of the text.

        Raises:
            InvalidConfigError: it holds no key, or a line is malformed or contradicts another.
        """
        keys = [_key(line, f"{source}, line {number}") for number, line in _lines(text)]
        if not keys:
            raise InvalidConfigError(f"{source} holds no API key", field="api_keys")
        if len({key.digest for key in keys}) < len(keys):
            raise InvalidConfigError(f"{source} holds the same API key twice", field="api_keys")
        if len({key.caller for key in keys}) > len({key.caller.name for key in keys}):
            raise InvalidConfigError(f"{source} gives one name two shares", field="api_keys")
        return cls(keys)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()


def _key(line: str, where: str) -> ApiKey:
    """One line; what it holds is secret, so errors only say where it stands."""
    name, _, rest = line.partition(":")
    share, _, key = rest.partition(":")
    if not _NAME.fullmatch(name) or name == ANONYMOUS.name:
        raise InvalidConfigError(f"{where}: not NAME:SHARE:KEY, or no name that a caller may have", field="api_keys")
    if not _KEY.fullmatch(key):
        raise InvalidConfigError(
            f"{where}: the key is not {MIN_KEY_LENGTH} to 1024 printable ASCII characters", field="api_keys"
        )
    try:
        return ApiKey(Caller(name, float(share)), _digest(key))
    except ValueError:
        raise InvalidConfigError(f"{where}: the share is not a positive number", field="api_keys") from None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
