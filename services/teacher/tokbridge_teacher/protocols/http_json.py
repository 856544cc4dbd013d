"""A score request and its answer as JSON, for people: read and written in threads, bounded in bytes.

Rows of cells take far more memory as Python objects than packed, so each piece of the answer becomes text as soon as it
is there. The text is held until the end, so that an error at the last row still has its own status.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import Response
from fastapi.responses import StreamingResponse

from tokbridge.errors import LimitExceededError
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary
from tokbridge.targets import TargetRows
from tokbridge_teacher.protocols.http_errors import parse_json
from tokbridge_teacher.protocols.http_schema import ScoreBody, row_to_json, summary_to_json
from tokbridge_teacher.request_limits import check_at_most, read_score_request
from tokbridge_teacher.settings import RequestLimits

Parts = AsyncGenerator[TargetRows | ScoreSummary]
Hold = Callable[[int], None]
"""Takes room for so many bytes until the call has ended; raises `OverloadedError` where there is none."""


def parse_score_body(content: bytes, request_id: str, limits: RequestLimits) -> tuple[str, ScoreRequest]:
    """Student id and request of a body; takes CPU time.

    Raises:
        TokbridgeError: as `parse_json` and `read_score_request`.
    """
    body = parse_json(ScoreBody, content)
    check_at_most("max_messages", len(body.messages), limits.max_messages)
    return body.student_id, read_score_request(body.to_proto(request_id), limits)


class JsonAnswer:
    """The answer to one request."""

    def __init__(self, request_id: str, max_bytes: int, hold: Hold) -> None:
        """`max_bytes`: of the whole text; `request_id` is well-formed."""
        self._max_bytes = max_bytes
        self._hold = hold
        self._before = f'{{"request_id":"{request_id}","rows":['.encode()
        self._pieces: deque[bytes] = deque()
        self._num_bytes = 0

    async def collect(self, parts: Parts, encoded: Callable[[float, float, int], None]) -> Response:
        """The whole answer; `parts` learn of an error or a fault that ends them here.

        Args:
            parts: rows, then the summary.
            encoded: takes begin and end of the writing of each piece, and its bytes.

        Raises:
            LimitExceededError: it is larger than `max_bytes`.
            OverloadedError: there is no room for it now.
            TokbridgeError: what `parts` raise.
        """
        async with aclosing(parts):
            async for part in parts:
                started_s = time.monotonic()
                try:
                    piece = await asyncio.to_thread(self._written, part)
                    encoded(started_s, time.monotonic(), len(piece))
                    self._add(piece)
                except Exception as fault:  # raised on: the service is told that it ends here, and whose fault it is
                    await parts.athrow(fault)
                    raise
        headers = {"content-length": str(self._num_bytes)}
        return StreamingResponse(self._sent(), media_type="application/json", headers=headers)

    def _written(self, part: TargetRows | ScoreSummary) -> bytes:
        before, self._before = self._before, b","
        if isinstance(part, ScoreSummary):
            # An answer has at least one row: that of its stop or of its first token.
            return b'],"summary":' + summary_to_json(part).model_dump_json().encode() + b"}"
        rows = (row_to_json(part, index).model_dump_json() for index in range(part.num_rows))
        return before + ",".join(rows).encode()

    def _add(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if self._num_bytes > self._max_bytes:
            raise LimitExceededError(
                f"The answer is larger than {self._max_bytes} bytes as JSON; ask for protobuf by `Accept`.",
                name="max_message_bytes",
                limit=self._max_bytes,
            )
        self._hold(len(piece))
        self._pieces.append(piece)

    async def _sent(self) -> AsyncGenerator[bytes]:
        while self._pieces:
            yield self._pieces.popleft()
