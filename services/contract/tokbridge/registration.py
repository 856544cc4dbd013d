"""A student as a teacher service knows it: its byte vocabulary, stop ids and tokenizer, under their own SHA-256.

Content-addressed, so registering twice is harmless and a service may forget.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tokbridge.description import Limits
from tokbridge.errors import InvalidRequestError, InvalidVocabularyError
from tokbridge.registration_reader import PAYLOADS, RegistrationReader, Upload
from tokbridge.v1 import teacher_pb2
from tokbridge.vocabulary import ByteVocabulary
from tokbridge.vocabulary_wire import pack_tokenizer, pack_vocabulary, unpack_tokenizer, unpack_vocabulary

if TYPE_CHECKING:
    from tokbridge.tokenizer_profile import TokenizerProfile

PIECE_BYTES = 2**20
"""Payloads travel in pieces of this size, well below gRPC's default message limit of 4 MiB."""


@dataclass(frozen=True, eq=False)
class StudentRegistration:
    """Everything a teacher needs to know of a student; compare `student_id` for equal content."""

    name: str
    """A label for people; part of the identity all the same."""
    vocabulary: ByteVocabulary
    stop_ids: frozenset[int]
    turn_end_id: int
    """s* of a response that was cut (spec §1); one of `stop_ids`."""
    tokenizer_json: str | None
    """The student's tokenizer; None: routing `bpe` is not offered to it."""

    @classmethod
    def from_profile(cls, profile: TokenizerProfile) -> StudentRegistration:
        """Registration of a loaded tokenizer."""
        return cls(
            name=profile.name,
            vocabulary=profile.vocabulary,
            stop_ids=profile.stop_ids,
            turn_end_id=profile.turn_end_id,
            tokenizer_json=profile.files.tokenizer_json or None,
        )

    @cached_property
    def student_id(self) -> str:
        """SHA-256 over the whole registration, as hex."""
        digest = hashlib.sha256()
        stop_ids = np.array([self.turn_end_id, *sorted(self.stop_ids)], "<i4").tobytes()
        tokenizer = (self.tokenizer_json or "").encode()
        for part in (self.name.encode(), stop_ids, *pack_vocabulary(self.vocabulary), tokenizer):
            digest.update(len(part).to_bytes(8, "little"))  # lengths too: no two registrations give the same bytes
            digest.update(part)
        return digest.hexdigest()

    def to_messages(self) -> Iterator[teacher_pb2.RegisterStudentRequest]:
        """The stream: the header, then the payloads in pieces of at most `PIECE_BYTES`."""
        payloads = (*pack_vocabulary(self.vocabulary), pack_tokenizer(self.tokenizer_json))
        header = teacher_pb2.StudentHeader(
            name=self.name,
            student_id=self.student_id,
            vocabulary_size=self.vocabulary.size,
            stop_ids=sorted(self.stop_ids),
            turn_end_id=self.turn_end_id,
            **{name: len(payload) for name, payload in zip(PAYLOADS, payloads, strict=True)},
        )
        yield teacher_pb2.RegisterStudentRequest(header=header)
        for payload in payloads:
            for start in range(0, len(payload), PIECE_BYTES):
                yield teacher_pb2.RegisterStudentRequest(chunk=payload[start : start + PIECE_BYTES])

    @classmethod
    def from_messages(
        cls, messages: Iterable[teacher_pb2.RegisterStudentRequest], limits: Limits
    ) -> StudentRegistration:
        """Read a whole stream; errors as `from_stream`."""
        reader = RegistrationReader(limits)
        for message in messages:
            reader.feed(message)
        return cls.from_upload(reader.finish())

    @classmethod
    async def from_stream(
        cls, messages: AsyncIterable[teacher_pb2.RegisterStudentRequest], limits: Limits
    ) -> StudentRegistration:
        """Read a whole stream as it arrives.

        Raises:
            LimitExceededError: it is larger than `limits`; raised before anything is allocated for it.
            InvalidVocabularyError: its tables do not make a vocabulary.
            InvalidRequestError: it is not well-formed, or its hash is not the announced one.
        """
        reader = RegistrationReader(limits)
        async for message in messages:
            reader.feed(message)
        return cls.from_upload(reader.finish())

    @classmethod
    def from_upload(cls, upload: Upload) -> StudentRegistration:
        """Build and check a registration from a complete upload; errors as `from_stream`. Takes CPU time."""
        *tables, tokenizer = upload.payloads
        registration = cls(
            name=upload.header.name,
            vocabulary=unpack_vocabulary(*tables),
            stop_ids=frozenset(upload.header.stop_ids),
            turn_end_id=upload.header.turn_end_id,
            tokenizer_json=unpack_tokenizer(tokenizer, upload.max_tokenizer_bytes),
        )
        registration.check_stops()
        if registration.student_id != upload.header.student_id:
            raise InvalidRequestError("`student_id` is not the hash of what was sent", field="student_id")
        return registration

    def check_stops(self) -> None:
        """Raise `InvalidVocabularyError` unless the stop ids are control tokens, the turn end among them."""
        tokens = self.vocabulary.token_bytes
        for stop_id in self.stop_ids:
            if not 0 <= stop_id < len(tokens) or tokens[stop_id] is not None:
                raise InvalidVocabularyError(f"stop id {stop_id} is not a control token", token_id=stop_id)
        if self.turn_end_id not in self.stop_ids:
            raise InvalidVocabularyError("`turn_end_id` is not one of the stop ids", token_id=self.turn_end_id)
