"""What a worker answers for one response: a status, and the chunks it computed, as one run of bytes.

Chunks are added as they are computed, in bytes from the start: small arrays kept between large temporaries would
fragment the heap.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from tokbridge_teacher.backends.vllm.chunk_codec import decode_chunk, encode_chunk
from tokbridge_teacher.targets.marginal import ChunkResult

_HEADER = struct.Struct("<BIi")
_LENGTH = struct.Struct("<Q")


class AnswerStatus(IntEnum):
    """How a worker got on with a response."""

    COMPUTED = 0
    """Whatever was not read from the prefix cache."""
    UNKNOWN_TABLES = 1
    """The worker holds no such tables: it started anew."""
    NON_FINITE = 2
    """NaN or infinity at `position`."""
    FAILED = 3
    """A fault, which the worker's log tells."""


@dataclass(frozen=True)
class WorkerAnswer:
    """One response's answer."""

    status: AnswerStatus
    position: int
    """Where the logits were not finite, else −1."""
    cached_tokens: int
    """Tokens at the start that were in the prefix cache."""
    chunks: tuple[ChunkResult, ...]
    """By position; there are gaps where tokens were in the cache."""


class AnswerWriter:
    """Collects an answer."""

    def __init__(self) -> None:
        self._status = AnswerStatus.COMPUTED
        self._position = -1
        self._buffer = bytearray(_HEADER.size)
        self.cached_tokens = 0

    @property
    def failed(self) -> bool:
        """Whether no more chunks are wanted."""
        return self._status is not AnswerStatus.COMPUTED

    def add(self, chunk: ChunkResult) -> None:
        """The next chunk."""
        data = encode_chunk(chunk)
        self._buffer += _LENGTH.pack(len(data))
        self._buffer += data

    def fail(self, status: AnswerStatus, position: int = -1) -> None:
        """Say why there is nothing, and drop what there was."""
        self._status, self._position = status, position
        del self._buffer[_HEADER.size :]

    def finished(self) -> bytearray:
        """The whole answer; nothing is added afterwards."""
        _HEADER.pack_into(self._buffer, 0, self._status, self.cached_tokens, self._position)
        return self._buffer


def decode_answer(data: memoryview) -> WorkerAnswer:
    """The answer of an `AnswerWriter`."""
    status, cached_tokens, position = _HEADER.unpack_from(data)
    chunks: list[ChunkResult] = []
    offset = _HEADER.size
    while offset < len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        chunks.append(decode_chunk(bytes(data[offset : offset + length])))
        offset += length
    return WorkerAnswer(AnswerStatus(status), position, cached_tokens, tuple(chunks))
