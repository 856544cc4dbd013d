"""How many gRPC calls may be under way. Health is not counted: it always answers.

Not grpcio's own bound: that one keeps the place of a call whose client has stopped reading for as long as the client
keeps its connection, and refuses health too. Here a place is free once the handler has ended, however it ended, or has
given its place back: a call whose client does not read still has its status to deliver, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import grpc

from tokbridge.error_mapping import RETRY_AFTER_DETAIL
from tokbridge.errors import OverloadedError
from tokbridge_teacher.protocols.authentication import OPEN_SERVICE

_RETRY_S = 1.0

Refusal = Callable[[grpc.aio.ServicerContext, OverloadedError], Awaitable[None]]


class _Place:
    """One place, given back once."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def leave(self) -> None:
        """Free it; more than once is as good as once."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


_PLACE: ContextVar[_Place | None] = ContextVar("place", default=None)


def leave_place() -> None:
    """Give the place of the present call back, from its handler; nothing happens where calls are not counted."""
    place = _PLACE.get()
    if place is not None:
        place.leave()


class RoomForCalls(grpc.aio.ServerInterceptor):
    """Interceptor that lets so many calls in at once."""

    def __init__(self, max_calls: int, refuse: Refusal) -> None:
        """`refuse` ends a call with the status of a typed error."""
        self._max_calls = max_calls
        self._refuse = refuse
        self._under_way = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the call, or one that refuses it before a message is read."""
        if not handler_call_details.method.startswith(OPEN_SERVICE):
            if self._under_way >= self._max_calls:
                return self._refusal()
            self._take_place()
        return await continuation(handler_call_details)

    def _take_place(self) -> None:
        """From before the first message is there until the task of the call ends, which is the one that asks."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way += 1
        place = _Place(self._give_back)
        _PLACE.set(place)
        task.add_done_callback(lambda _: place.leave())

    def _give_back(self) -> None:
        self._under_way -= 1

    def _refusal(self) -> grpc.RpcMethodHandler:
        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            error = OverloadedError(
                f"{self._max_calls} calls are under way; try again.", name="max_calls", **{RETRY_AFTER_DETAIL: _RETRY_S}
            )
            await self._refuse(context, error)

        # Whatever the method is: as a stream it is called before a message is read.
        return grpc.stream_stream_rpc_method_handler(refuse)
