"""The `RegisterStudent` stream as a service reads it: a header, then payloads in pieces, held to the service's limits.

Nothing is allocated on the word of a header: its sizes are checked first, and buffers grow only with bytes that came.
What the payloads mean is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokbridge.description import Limits
from tokbridge.errors import InvalidRequestError, LimitExceededError
from tokbridge.v1 import teacher_pb2
from tokbridge.vocabulary_wire import MAX_TOKENIZER_JSON_BYTES

PAYLOADS = ("token_lengths_bytes", "token_bytes_bytes", "canonical_ids_bytes", "tokenizer_json_bytes")
"""Header fields with the payloads' sizes, in the order of the payloads."""

MAX_NAME_LENGTH = 255


@dataclass(frozen=True)
class Upload:
    """A complete stream."""

    header: teacher_pb2.StudentHeader
    payloads: tuple[bytes, bytes, bytes, bytes]
    max_tokenizer_bytes: int
    """What the tokenizer may expand to: the rest of what a registration may hold."""


class RegistrationReader:
    """Takes the messages of one stream one by one, as a service gets them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._header: teacher_pb2.StudentHeader | None = None
        self._expected_bytes = 0
        self._received = bytearray()

    def feed(self, message: teacher_pb2.RegisterStudentRequest) -> None:
        """Take the next message.

        Raises:
            InvalidRequestError: not a header first and pieces after it, or more bytes than announced.
            LimitExceededError: the header announces more than the service allows.
        """
        if message.WhichOneof("part") == "header":
            self._start(message.header)
        elif not message.chunk:
            raise InvalidRequestError("a message of a registration has neither header nor bytes", field="chunk")
        elif self._header is None:
            raise InvalidRequestError("the first message of a registration must be its header", field="header")
        elif len(self._received) + len(message.chunk) > self._expected_bytes:
            raise InvalidRequestError("the registration has more bytes than its header says", field="chunk")
        else:
            self._received += message.chunk

    def finish(self) -> Upload:
        """The whole upload.

        Raises:
            InvalidRequestError: the stream ended early.
        """
        if self._header is None or len(self._received) < self._expected_bytes:
            raise InvalidRequestError("the registration ended before its last byte", field="chunk")
        lengths, content, canonical, tokenizer = (self._take(getattr(self._header, name)) for name in PAYLOADS)
        left = min(MAX_TOKENIZER_JSON_BYTES, self._limits.max_vocabulary_bytes - len(content))
        return Upload(self._header, (lengths, content, canonical, tokenizer), left)

    def _start(self, header: teacher_pb2.StudentHeader) -> None:
        if self._header is not None:
            raise InvalidRequestError("a registration has one header", field="header")
        check_name(header.name)
        check_within("vocabulary_size", header.vocabulary_size, self._limits.max_vocabulary_size)
        check_within("token_bytes_bytes", header.token_bytes_bytes, self._limits.max_vocabulary_bytes)
        check_within("tokenizer_json_bytes", header.tokenizer_json_bytes, self._limits.max_vocabulary_bytes)
        for name in ("token_lengths_bytes", "canonical_ids_bytes"):
            if getattr(header, name) != 4 * header.vocabulary_size:
                raise InvalidRequestError(f"`{name}` is not 4 bytes an id", field=name)
        self._header = header
        self._expected_bytes = sum(getattr(header, name) for name in PAYLOADS)

    def _take(self, size: int) -> bytes:
        payload = bytes(self._received[:size])
        del self._received[:size]
        return payload


def check_name(name: str) -> None:
    """Raise `InvalidRequestError` unless a student may have this name, whichever protocol brought it."""
    if len(name) > MAX_NAME_LENGTH or not name.isprintable():
        raise InvalidRequestError(f"`name` is not printable or over {MAX_NAME_LENGTH} characters", field="name")


def check_within(name: str, value: int, limit: int) -> None:
    """Raise `LimitExceededError` if a part of a registration is over its limit, whichever protocol brought it."""
    if value > limit:
        raise LimitExceededError(f"`{name}` is {value}, over the limit of {limit}", name=name, value=value, limit=limit)
