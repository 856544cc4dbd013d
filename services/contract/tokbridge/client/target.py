"""The address of a teacher as users write it.

host:port           encrypted if the client's credentials hold certificates, else plain
grpc://host:port    plain
grpcs://host:port   TLS
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tokbridge.errors import InvalidConfigError

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")
_TLS_BY_SCHEME = {"": None, "grpc": False, "grpcs": True}


@dataclass(frozen=True)
class Target:
    """A teacher's gRPC port."""

    host: str
    """A name, an IPv4 address, or an IPv6 address without its brackets."""
    port: int
    tls: bool | None
    """None: the user has not said."""

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_target(target: str) -> Target:
    """Read one address.

    Raises:
        InvalidConfigError: an HTTP URL, or no address at all.
    """
    scheme, separator, address = target.strip().rpartition("://")
    if scheme in ("http", "https"):
        raise InvalidConfigError(
            f"{target!r} is the teacher's HTTP address; rows travel over gRPC: give host:port of its gRPC port",
            field="target",
        )
    match = _ADDRESS.fullmatch(address.rstrip("/") if separator else address)
    host, port = (match["host"], int(match["port"])) if match is not None else ("", 0)
    if scheme not in _TLS_BY_SCHEME or not _is_host(host) or not 0 < port < 2**16:
        raise InvalidConfigError(f"{target!r} is not host:port, grpc://host:port or grpcs://host:port", field="target")
    return Target(host.strip("[]"), port, _TLS_BY_SCHEME[scheme])


def _is_host(host: str) -> bool:
    """Whether a resolver takes it; for labels that are empty or too long it raises no `OSError`."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def parse_targets(targets: str | Sequence[str]) -> tuple[Target, ...]:
    """Read the addresses of the replicas of one teacher.

    Raises:
        InvalidConfigError: there is none, one is wrong, or one stands there twice.
    """
    parsed = tuple(map(parse_target, [targets] if isinstance(targets, str) else targets))
    if not parsed:
        raise InvalidConfigError("a client needs the address of at least one teacher", field="target")
    addresses = [target.address for target in parsed]
    if len(set(addresses)) < len(addresses):
        raise InvalidConfigError(f"an address stands twice in {', '.join(addresses)}", field="target")
    return parsed
