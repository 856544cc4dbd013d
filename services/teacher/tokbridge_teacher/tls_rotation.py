"""Certificates that are replaced while a service runs: looked at before every handshake, read again when they change.

Files that cannot be used, such as a certificate whose key is still to come, leave what there was; connections that are
open keep what they were made with.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.file_version import FileVersion, file_version
from tokbridge_teacher.tls import ServerTls

Form = TypeVar("Form")

_log = logging.getLogger(__name__)


class Rotation(Generic[Form]):
    """What is made of certificate files, for one protocol; safe from any thread."""

    def __init__(self, tls: ServerTls, make: Callable[[ServerTls], Form]) -> None:
        """Make it for the first time.

        Raises:
            InvalidConfigError: the files cannot be used.
        """
        self._tls = tls
        self._make = make
        self._lock = threading.Lock()
        self._seen = self._versions()
        self.current = make(tls)

    def refreshed(self) -> Form | None:
        """What is made of files that have changed since the last look; None if they have not, or cannot be used."""
        with self._lock:
            versions = self._versions()
            if versions == self._seen:
                return None
            self._seen = versions  # from before they are read: a later change is seen at the next look
            try:
                self.current = self._make(self._tls)
            except InvalidConfigError as error:
                _log.error("certificates are left as they were: %s", error.message)
                return None
            _log.info("certificates were read anew")
            return self.current

    def _versions(self) -> list[FileVersion | None]:
        return [_version_or_none(path) for path in self._tls.files]


def _version_or_none(path: Path) -> FileVersion | None:
    try:
        return file_version(path)
    except OSError:
        return None


def grpc_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """For a gRPC server."""
    rotation = Rotation(tls, ServerTls.grpc_certificates)
    # None means no change, which the stubs of grpcio leave out.
    fetch: Callable[[], Any] = rotation.refreshed
    return grpc.dynamic_ssl_server_credentials(
        rotation.current, fetch, require_client_authentication=tls.client_ca is not None
    )


def ssl_context(tls: ServerTls) -> ssl.SSLContext:
    """For a server on asyncio."""
    rotation = Rotation(tls, ServerTls.context)

    def choose(connection: ssl.SSLObject, server_name: str | None, initial: ssl.SSLContext) -> None:
        """Called at the begin of every handshake, whether the client names a server or not."""
        rotation.refreshed()
        connection.context = rotation.current

    context = rotation.current
    context.sni_callback = choose
    return context
