"""What a client shows to a teacher, and what it demands to see: API key, certificates.

Keys never appear in a `repr` and are not part of any error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tokbridge.client.target import Target
from tokbridge.errors import InvalidConfigError

API_KEY_HEADER = "authorization"
"""Metadata that carries `Bearer KEY`, as over HTTP."""


@dataclass(frozen=True)
class ClientCredentials:
    """All optional; PEM bytes. For certificates on the disk see `from_files`."""

    ca: bytes | None = field(default=None, repr=False)
    """Certificates of the authorities that may vouch for the teacher; None: those that the system trusts."""
    certificate: bytes | None = field(default=None, repr=False)
    """The client's own certificate chain, for a teacher that asks for one (mTLS)…"""
    key: bytes | None = field(default=None, repr=False)
    """…and its private key."""
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidConfigError("a client certificate and its key go together", field="certificate")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise InvalidConfigError("the API key is empty or holds characters no header can carry", field="api_key")

    @classmethod
    def from_files(
        cls,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        api_key_file: Path | None = None,
        api_key_env: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> ClientCredentials:
        """Read files, and the API key from a file or an environment variable; white space around the key is cut off.

        Raises:
            InvalidConfigError: a file cannot be read, the variable is not set, or two sources of the key are given.
        """
        if api_key_file is not None and api_key_env is not None:
            raise InvalidConfigError("give the API key by file or by variable, not both", field="api_key_file")
        api_key = None
        if api_key_file is not None:
            api_key = _read(api_key_file, "api_key_file").decode(errors="replace").strip()
        elif api_key_env is not None:
            if api_key_env not in environ:
                raise InvalidConfigError(f"the variable {api_key_env} is not set", field="api_key_env")
            api_key = environ[api_key_env].strip()
        return cls(
            ca=None if ca is None else _read(ca, "ca"),
            certificate=None if certificate is None else _read(certificate, "certificate"),
            key=None if key is None else _read(key, "key"),
            api_key=api_key,
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self.api_key is None else ((API_KEY_HEADER, f"Bearer {self.api_key}"),)

    def encrypts(self, target: Target) -> bool:
        """Whether the channel to `target` is encrypted.

        Raises:
            InvalidConfigError: `target` is plain by its scheme while certificates are given.
        """
        has_certificates = self.ca is not None or self.certificate is not None
        if target.tls is False and has_certificates:
            raise InvalidConfigError(
                f"grpc://{target.address} is not encrypted, yet certificates are given; write grpcs://", field="target"
            )
        return has_certificates if target.tls is None else target.tls

    def exposed(self, targets: Sequence[Target]) -> list[str]:
        """Addresses to which the API key would cross a network in the clear; errors as `encrypts`."""
        plain = [target for target in targets if not self.encrypts(target)]
        return [target.address for target in plain if self.api_key is not None and not target.is_loopback]

    def for_channel(self) -> grpc.ChannelCredentials:
        """gRPC's form of the certificates."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidConfigError(f"cannot read `{name}` {path}: {reason}", field=name) from None
