"""Certificates of a service, for both protocols, checked before it listens. Knows no protocol's server."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from tokbridge.errors import InvalidConfigError


@dataclass(frozen=True)
class ServerTls:
    """A certificate chain, its key, and the authorities whose clients are let in; PEM files."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    """With it, a client must show a certificate of one of these authorities (mTLS)."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.certificate, self.key, *([] if self.client_ca is None else [self.client_ca]))

    def context(self) -> ssl.SSLContext:
        """OpenSSL's form.

        Raises:
            InvalidConfigError: the files cannot be read, or do not belong together.
        """
        for name, path in (("certificate", self.certificate), ("key", self.key), ("client_ca", self.client_ca)):
            if path is not None:
                _read(path, f"tls_{name}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password of its own an encrypted key would be asked for on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except ssl.SSLError as error:
            reason = "they do not belong together" if error.reason == "KEY_VALUES_MISMATCH" else _NOT_PEM
            raise InvalidConfigError(
                f"{self.certificate} and {self.key} are no certificate and its key: {reason}", field="tls_key"
            ) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError:
                raise InvalidConfigError(f"{self.client_ca} holds no certificate", field="tls_client_ca") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def grpc_certificates(self) -> grpc.ServerCertificateConfiguration:
        """gRPC's form; errors as `context`."""
        self.context()  # gRPC would find what is wrong at a handshake
        pair = (_read(self.key, "tls_key"), _read(self.certificate, "tls_certificate"))
        authorities = None if self.client_ca is None else _read(self.client_ca, "tls_client_ca")
        return grpc.ssl_server_certificate_configuration([pair], authorities)


_NOT_PEM = "not PEM, or the key is encrypted"


def exposures(host: str, *, has_keys: bool, has_tls: bool) -> list[str]:
    """What is wrong with listening on `host` like this; empty on loopback, where only this machine can call."""
    if _is_loopback(host):
        return []
    found = []
    if not has_keys:
        found.append(f"listening on {host} WITHOUT API KEYS: whoever reaches it may use it (--api-keys-file)")
    if not has_tls:
        found.append(f"listening on {host} WITHOUT TLS: texts and keys travel in the clear (--tls-certificate)")
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}", field=field) from None
