"""The address of a teacher as users write it."""

from __future__ import annotations

import re

from tokbridge.errors import InvalidConfigError

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})")


def parse_target(target: str) -> str:
    """`host:port` of a teacher's gRPC port, from `host:port` or `grpc://host:port`.

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
    if scheme not in ("", "grpc") or match is None or not 0 < int(match["port"]) < 2**16:
        raise InvalidConfigError(f"{target!r} is not host:port or grpc://host:port", field="target")
    return match[0]
