"""Responses that the teacher wrote, as samples for the same targets: for the warm start, and to evaluate on.

Their bytes are cut with the student's own tokenizer, as its encoder would write them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InvalidDataError, TokensDoNotSpellResponseError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.data_order import index_at
from tokbridge_trainer.prompts import prompt_of, read_rows
from tokbridge_trainer.samples import Prompt, Sample, SampleKey
from tokbridge_trainer.student_text import StudentText

_NOT_THE_STUDENT = -1


@dataclass(frozen=True)
class WrittenResponse:
    """A teacher's response in the student's tokens."""

    prompt: Prompt
    token_ids: NDArray[np.int32]
    response: bytes
    stop_id: int | None


@dataclass(frozen=True)
class WrittenSet:
    """The usable responses of some files."""

    responses: list[WrittenResponse]
    skipped: Mapping[str, int]
    """Rows left out, by reason: `overlong` prompts, `unspellable` or `empty` responses."""
    seed: int

    def all_samples(self, step: int) -> list[Sample]:
        """Every response once, in the order of the files."""
        return [self._sample(SampleKey(step, i, 0), written) for i, written in enumerate(self.responses)]

    def samples(self, step: int, count: int) -> list[Sample]:
        """The samples of a step, in a shuffled order by seed and epoch."""
        indices = [index_at(step * count + i, len(self.responses), self.seed, True) for i in range(count)]
        return [self._sample(SampleKey(step, index, i), self.responses[index]) for i, index in enumerate(indices)]

    def _sample(self, key: SampleKey, written: WrittenResponse) -> Sample:
        return Sample(key, written.prompt, _NOT_THE_STUDENT, written.token_ids, written.response, written.stop_id)


def load_warm_start(config: TrainConfig, text: StudentText) -> WrittenSet | None:
    """The responses of the warm start, if there is one."""
    return load_written(config.warm_start.responses, None, config, text) if config.warm_start else None


def load_evaluation_responses(config: TrainConfig, text: StudentText) -> WrittenSet | None:
    """The responses to evaluate on, if there are any."""
    return load_written(config.eval.responses, config.eval.limit, config, text) if config.eval.responses else None


def load_written(files: Sequence[str], limit: int | None, config: TrainConfig, text: StudentText) -> WrittenSet:
    """Read responses and cut them into the student's tokens.

    Raises:
        InvalidDataError: a row has no `response` or a conversation that is refused, or no row can be used.
    """
    found = read_rows(files, limit)
    with found.located():
        outcomes = [_written(row, index, config, text) for index, row in enumerate(found.rows)]
    responses = [outcome for outcome in outcomes if isinstance(outcome, WrittenResponse)]
    reasons = [outcome for outcome in outcomes if isinstance(outcome, str)]
    if not responses:
        raise InvalidDataError(f"no response of {', '.join(files)} can be used")
    return WrittenSet(responses, {reason: reasons.count(reason) for reason in sorted(set(reasons))}, config.seed)


def _written(row: Mapping[str, Any], index: int, config: TrainConfig, text: StudentText) -> WrittenResponse | str:
    """One row, or the reason why it is left out."""
    response = row.get("response")
    if not isinstance(response, str):
        raise InvalidDataError(f"row {index} has no `response`", row=index, column="response")
    prompt = prompt_of(row, index, text, config.prompt_columns)
    if len(prompt.token_ids) > config.max_prompt_tokens:
        return "overlong"
    try:
        ids = text.content_ids(response.encode())
    except TokensDoNotSpellResponseError:
        return "unspellable"
    finished = row.get("finish") == "stop" and len(ids) < config.max_response_tokens
    ids = ids[: config.max_response_tokens]
    stop_id = text.profile.turn_end_id if finished else None
    if not len(ids) and stop_id is None:
        return "empty"
    return WrittenResponse(prompt, ids, text.profile.vocabulary.content_of(ids), stop_id)
