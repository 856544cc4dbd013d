"""Scoring a response: whole, or row by row, over as many attempts as it takes.

A scored response leaves nothing behind in the service, so every call may be made again.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from tokbridge.client.attempts import Attempts
from tokbridge.client.expectation import check_request
from tokbridge.client.score_stream import ScoreStream
from tokbridge.client.session import Metadata
from tokbridge.client.statistics import ClientStatistics
from tokbridge.errors import CorruptStreamError, TokbridgeError
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult, ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2_grpc


class Scorer:
    """Scores responses of one student."""

    def __init__(
        self,
        stub: teacher_pb2_grpc.TeacherStub,
        student: StudentRegistration,
        metadata: Metadata,
        statistics: ClientStatistics,
        new_attempts: Callable[[], Attempts],
    ) -> None:
        self._stub = stub
        self._student = student
        self._metadata = tuple(metadata)
        self._statistics = statistics
        self._new_attempts = new_attempts

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """All rows, from one attempt whose checksum was right."""
        request = self._started(request)
        attempts = self._new_attempts()
        while True:
            try:
                rows, summary = await self._collect(request, attempts)
            except TokbridgeError as error:
                await attempts.recover(error)
            else:
                self._finished(rows.num_rows)
                return ScoreResult(rows=rows, attempts=attempts.count, retries=attempts.retries, **vars(summary))

    async def stream(self, request: ScoreRequest) -> AsyncGenerator[TargetRows, None]:
        """Rows as they are released; after a failure, only those not yet handed out."""
        request = self._started(request)
        attempts = self._new_attempts()
        delivered = 0
        while True:
            try:
                stream = await self._open(request, attempts)
                async with aclosing(self._rows(stream)) as received:
                    async for rows in received:
                        fresh = rows.slice(max(0, delivered - rows.first_row), rows.num_rows)
                        delivered += fresh.num_rows
                        if fresh.num_rows:
                            yield fresh
            except TokbridgeError as error:
                if delivered and isinstance(error, CorruptStreamError):
                    raise
                await attempts.recover(error)
            else:
                self._finished(delivered)
                return

    async def _collect(self, request: ScoreRequest, attempts: Attempts) -> tuple[TargetRows, ScoreSummary]:
        stream = await self._open(request, attempts)
        async with aclosing(self._rows(stream)) as received:
            parts = [rows async for rows in received]
        return TargetRows.concatenate(parts), stream.checked_summary()

    async def _open(self, request: ScoreRequest, attempts: Attempts) -> ScoreStream:
        standing = await attempts.begin()
        check_request(request, standing.teacher)
        call = self._stub.Score(
            request.to_proto(self._student.student_id), timeout=attempts.remaining_s, metadata=self._metadata
        )
        return ScoreStream(call, request.num_rows, self._student.vocabulary.size)

    async def _rows(self, stream: ScoreStream) -> AsyncGenerator[TargetRows, None]:
        try:
            async with aclosing(stream.rows()) as received:
                async for rows in received:
                    yield rows
        finally:
            self._statistics.received_bytes += stream.received_bytes

    def _started(self, request: ScoreRequest) -> ScoreRequest:
        self._statistics.calls += 1
        return request if request.request_id else replace(request, request_id=secrets.token_hex(8))

    def _finished(self, num_rows: int) -> None:
        self._statistics.finished_calls += 1
        self._statistics.rows += num_rows
