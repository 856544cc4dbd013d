"""A TCP proxy that can stop forwarding without closing anything, as a host that vanished does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class FreezingProxy:
    """Forwards while `flowing` is set."""

    port: int = 0
    flowing: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    """Taken so far."""


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[FreezingProxy]:
    """A proxy on a loopback port of its own, flowing at first."""
    proxy = FreezingProxy()
    proxy.flowing.set()
    pumps: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await proxy.flowing.wait()
            writer.write(data)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.connections += 1
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", port)
        pumps.add(asyncio.create_task(pump(reader, upstream_writer)))
        pumps.add(asyncio.create_task(pump(upstream_reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        server.close()
