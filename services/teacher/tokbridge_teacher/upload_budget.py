"""Bytes held for callers over all connections, bounded: what they have sent, before it is read, and JSON answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tokbridge.error_mapping import RETRY_AFTER_DETAIL
from tokbridge.errors import OverloadedError

_RETRY_S = 1.0


@dataclass(eq=False)
class Upload:
    """What is held for one call."""

    held_bytes: int = 0


class UploadBudget:
    """Room for uploads; safe from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held_bytes

    @contextmanager
    def upload(self) -> Iterator[Upload]:
        """One call's upload; all of its room is given back at the end."""
        upload = Upload()
        try:
            yield upload
        finally:
            with self._lock:
                self._held_bytes -= upload.held_bytes

    def take(self, upload: Upload, num_bytes: int) -> None:
        """Room for `num_bytes` more.

        Raises:
            OverloadedError: there is none now.
        """
        with self._lock:
            if self._held_bytes + num_bytes > self._max_bytes:
                raise OverloadedError(
                    "Too many bytes are being uploaded or wait to be read; try again.",
                    name="max_upload_bytes",
                    **{RETRY_AFTER_DETAIL: _RETRY_S},
                )
            self._held_bytes += num_bytes
            upload.held_bytes += num_bytes
