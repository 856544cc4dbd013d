"""Hostile calls over a real socket, and what may come back: an answer, or a typed error that is the caller's fault."""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from support.broken_messages import broken, broken_tokenizer, flipped, noise
from tokbridge.error_mapping import ERROR_TRAILER_KEY
from tokbridge.registration import StudentRegistration
from tokbridge.v1 import teacher_pb2

TIMEOUT_S = 60.0
"""Far longer than a call takes when no others go on."""

_FAULTS = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "DATA_LOSS", "CANCELLED", "UNIMPLEMENTED"}


class HostileCaller:
    """Sends broken calls to one service, by a seed."""

    def __init__(
        self,
        channel: grpc.Channel,
        requests: Iterable[teacher_pb2.ScoreRequest],
        registration: StudentRegistration,
        metadata: Sequence[tuple[str, str]] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`metadata` goes with every call; none may take longer than `timeout_s`."""
        self._score = channel.unary_stream("/tokbridge.v1.Teacher/Score")
        self._register = channel.stream_unary("/tokbridge.v1.Teacher/RegisterStudent")
        self._describe = channel.unary_unary("/tokbridge.v1.Teacher/GetTeacher")
        self._requests = list(requests)
        self._registration = registration
        self._sent: dict[str, Any] = {"timeout": timeout_s, "metadata": tuple(metadata)}
        self._upload = list(registration.to_messages())
        self.outcomes: Counter[str] = Counter()
        """Answers and errors so far, by kind of input and code."""

    def call(self, random: Random) -> None:
        """One hostile call.

        Raises:
            AssertionError: what came back is the service's fault.
        """
        kind = random.choices(
            (self._broken_score, self._flipped_score, self._broken_upload, self._other_tokenizer, self._no_message),
            (55, 25, 11, 3, 6),
        )[0]
        name = kind.__name__.strip("_")
        self.outcomes[f"{name}: {kind(random)}"] += 1

    def register(self) -> str:
        """The valid registration, again: the service may have forgotten it."""
        answer = self._register(iter([m.SerializeToString() for m in self._upload]), **self._sent)
        return teacher_pb2.RegisterStudentResponse.FromString(answer).student_id

    def _broken_score(self, random: Random) -> str:
        message = random.choice(self._requests)
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            message = broken(random, message)
        return self._scored(message.SerializeToString())

    def _flipped_score(self, random: Random) -> str:
        return self._scored(flipped(random, random.choice(self._requests).SerializeToString()))

    def _broken_upload(self, random: Random) -> str:
        messages = [message.SerializeToString() for message in self._upload]
        place = random.randrange(len(messages))
        action = random.randrange(6)
        if action == 0:
            messages[place] = broken(random, self._upload[place]).SerializeToString()
        elif action == 1:
            messages[place] = flipped(random, messages[place])
        elif action == 2:
            del messages[place]
        elif action == 3:
            messages.insert(place, random.choice(messages))
        elif action == 4:
            random.shuffle(messages)
        else:
            messages = messages[:place]
        return self._uploaded(messages)

    def _other_tokenizer(self, random: Random) -> str:
        """A registration whose hashes are right and whose tokenizer is broken."""
        text = broken_tokenizer(random, self._registration.tokenizer_json or "")
        if random.random() < 0.8:
            try:
                other = replace(self._registration, tokenizer_json=text, name=hashlib.md5(text.encode()).hexdigest())
                return self._uploaded([message.SerializeToString() for message in other.to_messages()])
            except UnicodeEncodeError:
                return "not sent"
        header = self._upload[0].header
        payload = random.choice((zlib.compress(b" " * (1 << 22)), zlib.compress(b"{}") + b"x", noise(random)))
        changed = teacher_pb2.StudentHeader()
        changed.CopyFrom(header)
        changed.tokenizer_json_bytes = len(payload)
        sizes = (header.token_lengths_bytes, header.token_bytes_bytes, header.canonical_ids_bytes)
        tables = b"".join(message.chunk for message in self._upload[1:])[: sum(sizes)]
        parts = [teacher_pb2.RegisterStudentRequest(header=changed), *_chunks(tables + payload)]
        return self._uploaded([part.SerializeToString() for part in parts])

    def _no_message(self, random: Random) -> str:
        content = noise(random)
        call = random.choice(
            (self._scored, lambda sent: self._uploaded([sent] * random.randint(0, 3)), self._described)
        )
        return call(content)

    def _scored(self, message: bytes) -> str:
        return _outcome(lambda: list(self._score(message, **self._sent)), message)

    def _uploaded(self, messages: list[bytes]) -> str:
        return _outcome(lambda: self._register(iter(messages), **self._sent), *messages)

    def _described(self, message: bytes) -> str:
        return _outcome(lambda: self._describe(message, **self._sent), message)


def _chunks(content: bytes) -> list[teacher_pb2.RegisterStudentRequest]:
    return [
        teacher_pb2.RegisterStudentRequest(chunk=content[start : start + 65536])
        for start in range(0, len(content), 65536)
    ]


def _outcome(call: Callable[[], object], *sent: bytes) -> str:
    """What came of a call: `ok` or an error's code."""
    try:
        call()
    except grpc.RpcError as failure:
        status = failure.code().name
        trailers = dict(failure.trailing_metadata() or ())
        try:
            detail = teacher_pb2.ErrorDetail.FromString(trailers[ERROR_TRAILER_KEY])
        except (KeyError, DecodeError):
            raise AssertionError(f"untyped {status}: {failure.details()} for {_shown(sent)}") from failure
        allowed = status not in _FAULTS or (status, detail.code) == ("UNIMPLEMENTED", "unsupported_mode")
        assert allowed, f"{status} {detail.code}: {detail.message} for {_shown(sent)}"
        return detail.code
    return "ok"


def _shown(sent: Iterable[bytes]) -> str:
    return " | ".join(part[:2000].hex() for part in sent)
