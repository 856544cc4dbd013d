"""One `Score` call: the messages of its stream as rows, and the trailer checked against them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc.aio

from tokbridge.client.call_errors import error_of_call
from tokbridge.client.silence import Silence, SilentReplicaError
from tokbridge.errors import CorruptStreamError, RequestCancelledError
from tokbridge.results import ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2
from tokbridge.wire import checksum, decode_rows


class ScoreStream:
    """Reads one stream, once."""

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[teacher_pb2.ScoreRequest, teacher_pb2.ScoreResponse],
        expected_rows: int,
        vocabulary_size: int,
        silence: Silence,
    ) -> None:
        self._call = call
        self._expected_rows = expected_rows
        self._vocabulary_size = vocabulary_size
        self._silence = silence
        self._given_up: SilentReplicaError | None = None
        self.waits_since_s: float | None = None
        """Since when the next message has been waited for; None while it is not."""
        self._num_rows = 0
        self._checksum = 0
        self.received_bytes = 0
        self._summary: ScoreSummary | None = None

    async def rows(self) -> AsyncGenerator[TargetRows, None]:
        """Rows as they are released, in order. The call is cancelled when the caller stops early.

        Raises:
            CorruptStreamError: rows are missing, malformed or not those the trailer vouches for.
            SilentReplicaError: it was given up.
            TokbridgeError: what the service reported.
        """
        try:
            async for message in self._messages():
                self.received_bytes += message.ByteSize()
                if message.WhichOneof("part") == "trailer":
                    self._end(message.trailer)
                else:
                    yield self._decode(message.rows)
        except grpc.aio.AioRpcError as failure:
            raise error_of_call(failure) from failure
        except asyncio.CancelledError as cancelled:
            if _this_task_is_cancelled():
                raise
            if self._given_up is not None:
                raise self._given_up from cancelled
            raise RequestCancelledError("the client was closed during the call") from cancelled
        finally:
            self._call.cancel()
        self.checked_summary()

    def give_up(self, error: SilentReplicaError) -> None:
        """End the call; who reads the rows gets `error`."""
        self._given_up = error
        self._call.cancel()

    def checked_summary(self) -> ScoreSummary:
        """The trailer, which came after all rows and vouches for them.

        Raises:
            CorruptStreamError: it has not come.
        """
        if self._summary is None:
            raise CorruptStreamError("the stream ended without its trailer", rows_received=self._num_rows)
        return self._summary

    async def _messages(self) -> AsyncGenerator[teacher_pb2.ScoreResponse, None]:
        self.waits_since_s = self._silence.clock()
        async for message in self._call:
            self._silence.heard()
            self.waits_since_s = None
            yield message
            self.waits_since_s = self._silence.clock()

    def _decode(self, message: teacher_pb2.Rows) -> TargetRows:
        if self._summary is not None or message.first_row != self._num_rows:
            raise CorruptStreamError(f"rows from {message.first_row} came where {self._num_rows} was next")
        rows = decode_rows(message, vocabulary_size=self._vocabulary_size)
        self._num_rows += rows.num_rows
        self._checksum = checksum(message, self._checksum)
        return rows

    def _end(self, trailer: teacher_pb2.ScoreTrailer) -> None:
        if not self._num_rows == trailer.num_rows == self._expected_rows:
            raise CorruptStreamError(
                f"{self._num_rows} rows came; the trailer says {trailer.num_rows}, the response {self._expected_rows}",
                rows_received=self._num_rows,
            )
        if trailer.checksum != self._checksum:
            raise CorruptStreamError("the checksum of the rows is not the trailer's", field="checksum")
        self._summary = ScoreSummary.from_proto(trailer)


def _this_task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
