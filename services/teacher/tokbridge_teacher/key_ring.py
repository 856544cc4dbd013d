"""Where a running service has its API keys from: a file that is read again when it changes, or the environment."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.api_keys import ApiKeys
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.file_version import FileVersion, file_version

KEYS_VARIABLE = "TOKBRIDGE_API_KEYS"
"""Environment variable with the text of a key file."""

RELOAD_S = 1.0
"""How often a key file is looked at."""

_log = logging.getLogger(__name__)


class KeyRing(Protocol):
    """Tells callers by their keys."""

    def caller(self, key: str) -> Caller | None:
        """Whose key this is; None if nobody's."""
        ...


class KeyFile:
    """Keys of a file, so that keys are replaced without a restart; a file that breaks leaves the keys as they were."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file.

        Raises:
            InvalidConfigError: it cannot be read, or holds no valid keys.
        """
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._version = self._stat()
        self._keys = self._read()

    def caller(self, key: str) -> Caller | None:
        """Whose key this is at present; None if nobody's."""
        now = self._clock()
        if now - self._looked_at >= RELOAD_S:
            self._looked_at = now
            self._reload()
        return self._keys.caller(key)

    def _reload(self) -> None:
        try:
            version = self._stat()
            if version == self._version:
                return
            self._version = version
            self._keys = self._read()
        except InvalidConfigError as error:
            _log.error("API keys are left as they were: %s", error.message)
        else:
            _log.info("API keys were read anew: %r", self._keys)

    def _stat(self) -> FileVersion:
        try:
            return file_version(self._path)
        except OSError as error:
            raise InvalidConfigError(f"cannot read {self._path}: {error.strerror}", field="api_keys_file") from None

    def _read(self) -> ApiKeys:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise InvalidConfigError(f"cannot read {self._path}: {reason}", field="api_keys_file") from None
        return ApiKeys.parse(text, str(self._path))


def open_key_ring(path: Path | None, environ: Mapping[str, str] = os.environ) -> KeyRing | None:
    """The keys of a file or of `TOKBRIDGE_API_KEYS`; None where neither is given, and everybody may call.

    Raises:
        InvalidConfigError: both are given, or the one that is does not hold valid keys.
    """
    text = environ.get(KEYS_VARIABLE)
    if path is None:
        return None if text is None else ApiKeys.parse(text, KEYS_VARIABLE)
    if text is not None:
        raise InvalidConfigError(f"give API keys by file or in {KEYS_VARIABLE}, not both", field="api_keys_file")
    return KeyFile(path)
