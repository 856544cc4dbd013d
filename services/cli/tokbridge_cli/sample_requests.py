"""Score requests to try a teacher with: prompts, and stretches of text as responses, in a student's own tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from pydoc_data.topics import topics
from random import Random

import numpy as np
from numpy.typing import NDArray

from tokbridge.conversation import ChatMessage
from tokbridge.encoders import content_encoder
from tokbridge.errors import InvalidDataError
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest

Conversation = Sequence[ChatMessage]


class SampleRequests:
    """An endless supply; the same seed gives the same requests."""

    def __init__(
        self,
        student: StudentRegistration,
        conversations: Sequence[Conversation],
        *,
        response_tokens: int,
        seed: int,
        text: str | None = None,
    ) -> None:
        """`text` is what responses are cut from; left out: Python's own manual."""
        self._student = student
        self._conversations = conversations
        self._response_tokens = response_tokens
        self._random = Random(seed)
        self._ids_N = student_tokens(student, "\n\n".join(topics.values()) if text is None else text)

    def __iter__(self) -> Iterator[ScoreRequest]:
        while True:
            yield self._next()

    def _next(self) -> ScoreRequest:
        """A conversation and a finished response of so many tokens."""
        ids_N = self._ids_N
        start = self._random.randrange(max(1, len(ids_N) - self._response_tokens))
        chosen = ids_N[start : start + self._response_tokens]
        return ScoreRequest(
            messages=self._random.choice(self._conversations),
            response=self._student.vocabulary.content_of(chosen),
            token_ids=chosen,
            stop_id=self._student.turn_end_id,
        )


def student_tokens(student: StudentRegistration, text: str) -> NDArray[np.int32]:
    """[N], a text in the student's content tokens; what has none, control tokens and unknown bytes, is left out."""
    vocabulary = student.vocabulary
    if student.tokenizer_json is None:
        ids = (vocabulary.ids_by_bytes.get(bytes([value]), -1) for value in text.encode())
    else:
        control_ids = [token for token, content in enumerate(vocabulary.token_bytes) if content is None]
        ids = content_encoder(json.loads(student.tokenizer_json), control_ids).encode(text).ids
    ids_N = np.fromiter(ids, np.int32)
    return ids_N[(ids_N >= 0) & (vocabulary.lengths[ids_N] > 0)]


def default_conversations() -> list[Conversation]:
    """Questions about Python, one for every topic of its manual."""
    return [[{"role": "user", "content": f"What does Python's manual say about {topic}?"}] for topic in topics]


def read_conversations(path: Path) -> list[Conversation]:
    """Conversations of a JSONL file with `messages` or `prompt` in every line.

    Raises:
        InvalidDataError: it cannot be read, or a line has neither; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # not where `splitlines` cuts: text may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDataError(f"cannot read {path} as text") from error
    conversations = [_conversation(line, row) for row, line in enumerate(lines, start=1) if line.strip()]
    if not conversations:
        raise InvalidDataError(f"{path} holds no prompt")
    return conversations


def _conversation(line: str, row: int) -> Conversation:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidDataError(f"line {row} is not JSON", row=row) from error
    messages = record.get("messages") if isinstance(record, dict) else None
    if isinstance(messages, list) and messages:
        return messages
    if isinstance(record, dict) and isinstance(record.get("prompt"), str):
        return [{"role": "user", "content": record["prompt"]}]
    raise InvalidDataError(f"line {row} has neither `messages` nor `prompt`", row=row)
