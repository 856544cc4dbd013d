"""From names to addresses: every address of a name is a replica of its own.

gRPC would resolve names too, but then one channel would reach several instances, and a student that was registered with
one of them would be unknown to the next.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tokbridge.client.target import Target
from tokbridge.errors import TeacherUnavailableError


@dataclass(frozen=True)
class Endpoint:
    """One address of a target."""

    target: Target
    ip: str

    @property
    def name(self) -> str:
        """What people and errors call it: the target, with the address if it was a name."""
        return self.authority if self.ip == self.target.host else f"{self.authority} ({self.ip})"

    @property
    def authority(self) -> str:
        """`host:port` as the user wrote it."""
        return self.target.address

    @property
    def uri(self) -> str:
        """gRPC's form of the address."""
        if ipaddress.ip_address(self.ip).version == 6:
            return f"ipv6:[{self.ip}]:{self.target.port}"
        return f"ipv4:{self.ip}:{self.target.port}"


Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port to IP addresses; raises `OSError` when there are none."""


async def system_addresses(host: str, port: int) -> list[str]:
    """What the system's resolver says; IPv6 addresses only where there are no others, since the two name one host."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    by_family = {
        family: sorted({str(address[0]) for f, _, _, _, address in found if f == family})
        for family in (socket.AF_INET, socket.AF_INET6)
    }
    return by_family[socket.AF_INET] or by_family[socket.AF_INET6]


async def endpoints_of(target: Target, resolve: Resolve) -> list[Endpoint]:
    """All addresses of a target; one that is an address already is left alone.

    Raises:
        TeacherUnavailableError: the name does not resolve, which may pass.
    """
    try:
        ipaddress.ip_address(target.host)
    except ValueError:
        pass
    else:
        return [Endpoint(target, target.host)]
    try:
        addresses = await resolve(target.host, target.port)
    except OSError as error:
        raise TeacherUnavailableError(f"the name {target.host} does not resolve: {error.strerror}") from error
    return [Endpoint(target, address) for address in addresses]
