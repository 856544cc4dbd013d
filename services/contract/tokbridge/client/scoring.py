"""Scoring a response: whole, or row by row, over as many attempts as it takes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

from tokbridge.client.attempts import Attempt, Attempts
from tokbridge.client.call_metadata import REQUEST_ID_DETAIL, new_request_id
from tokbridge.client.expectation import check_request
from tokbridge.client.handshake import Demands
from tokbridge.client.score_stream import ScoreStream
from tokbridge.client.silence import given_up_when_silent
from tokbridge.errors import CorruptStreamError, TokbridgeError
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult, ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2


@dataclass(frozen=True)
class _Call:
    """A request under its id, packed once for all attempts."""

    request: ScoreRequest
    request_id: str
    message: teacher_pb2.ScoreRequest
    attempts: Attempts


class Scorer:
    """Scores responses of one student."""

    def __init__(self, demands: Demands, new_attempts: Callable[[bytes], Attempts], max_silence_s: float) -> None:
        """`new_attempts` takes the key by which calls stay together on one replica."""
        self._demands = demands
        self._max_silence_s = max_silence_s
        self._statistics = demands.statistics
        self._new_attempts = new_attempts

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """All rows, from one attempt whose checksum was right."""
        call = self._started(request)
        with self._failures(call):
            while True:
                try:
                    async with call.attempts.begin() as attempt:
                        rows, summary = await self._collect(call, attempt)
                except TokbridgeError as error:
                    await call.attempts.recover(error)
                else:
                    self._finished(call, rows.num_rows)
                    return ScoreResult(
                        rows=rows, attempts=call.attempts.count, retries=call.attempts.retries, **vars(summary)
                    )

    async def stream(self, request: ScoreRequest) -> AsyncGenerator[TargetRows, None]:
        """Rows as they are released; after a failure, only those not yet handed out."""
        call = self._started(request)
        delivered = 0
        with self._failures(call):
            while True:
                try:
                    async with call.attempts.begin() as attempt, self._received(call, attempt) as (_, parts):
                        async for rows in parts:
                            fresh = rows.slice(max(0, delivered - rows.first_row), rows.num_rows)
                            delivered += fresh.num_rows
                            if fresh.num_rows:
                                yield fresh
                except TokbridgeError as error:
                    if delivered and isinstance(error, CorruptStreamError):
                        raise
                    await call.attempts.recover(error)
                else:
                    self._finished(call, delivered)
                    return

    async def _collect(self, call: _Call, attempt: Attempt) -> tuple[TargetRows, ScoreSummary]:
        async with self._received(call, attempt) as (stream, received):
            parts = [rows async for rows in received]
        return TargetRows.concatenate(parts), stream.checked_summary()

    def _open(self, call: _Call, attempt: Attempt) -> ScoreStream:
        check_request(call.request, attempt.standing.teacher)
        metadata = self._demands.metadata.of(call.request_id)
        stream = attempt.replica.stub.Score(call.message, timeout=attempt.timeout_s, metadata=metadata)
        vocabulary = self._demands.student.vocabulary
        return ScoreStream(stream, call.request.num_rows, vocabulary.size, attempt.replica.silence)

    @asynccontextmanager
    async def _received(
        self, call: _Call, attempt: Attempt
    ) -> AsyncIterator[tuple[ScoreStream, AsyncIterator[TargetRows]]]:
        stream = self._open(call, attempt)
        watch = given_up_when_silent(stream, attempt.replica.silence, self._max_silence_s, attempt.may_go_elsewhere)
        try:
            async with aclosing(stream.rows()) as received, watch:
                yield stream, received
        finally:
            self._statistics.received_bytes += stream.received_bytes

    def _started(self, request: ScoreRequest) -> _Call:
        self._statistics.calls += 1
        message = request.to_proto(self._demands.student.student_id)
        message.request_id = message.request_id or new_request_id()
        return _Call(request, message.request_id, message, self._new_attempts(_conversation_key(message)))

    @contextmanager
    def _failures(self, call: _Call) -> Iterator[None]:
        """Counts errors that end the call; the caller finds the request's id in them."""
        try:
            yield
        except TokbridgeError as error:
            error.details.setdefault(REQUEST_ID_DETAIL, call.request_id)
            self._statistics.failed_calls[error.code.value] += 1
            raise

    def _finished(self, call: _Call, num_rows: int) -> None:
        call.attempts.finished()
        self._statistics.finished_calls += 1
        self._statistics.rows += num_rows


def _conversation_key(message: teacher_pb2.ScoreRequest) -> bytes:
    """Equal for the samples of one prompt, which a service computes the prompt of once."""
    digest = hashlib.blake2b(message.tools_json.encode(), digest_size=16)
    for turn in message.messages:
        digest.update(turn.SerializeToString(deterministic=True))
    return digest.digest()
