"""What travels between prompts, rollout workers, feed and learner.

Plain frozen records of numpy arrays and Python values, so they cross process borders cheaply. No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokbridge.requests import split_at_stop as split_at_stop
from tokbridge.results import ScoreResult
from tokbridge.targets import TargetRows

EVALUATION_STEP = 10**9
"""Step in the keys of rollouts that are evaluated and not learned from; the same each time, so that draws are too."""
WRITTEN_EVALUATION_STEP = EVALUATION_STEP + 1
"""The same for responses that the teacher wrote."""


ColumnValue = str | int | float | bool


class SampleKey(NamedTuple):
    """Names one sample of a run. The order of keys is the order of a batch, whatever arrived first."""

    step: int
    prompt_index: int
    sample_index: int


@dataclass(frozen=True)
class Prompt:
    """One conversation that the student is to answer."""

    index: int
    """Row in the data set."""
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    token_ids: NDArray[np.int32]
    """[P], rendered with the student's chat template."""
    student_tail: str
    """g_s: the thinking opening at the end of the rendered prompt (spec §3)."""
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)
    """Further columns of its row, those that the choice of teachers reads; empty ones are left out."""


@dataclass(frozen=True)
class Sample:
    """One response and where it came from."""

    key: SampleKey
    prompt: Prompt
    policy_version: int
    """Optimizer steps that the policy that wrote it had seen; −1: not written by the student."""
    token_ids: NDArray[np.int32]
    """[N], content ids as sampled, without the stop token."""
    response: bytes
    """Content bytes; the ids spell them."""
    stop_id: int | None
    """The stop token that ended it; None: cut at its length cap."""

    @property
    def num_response_tokens(self) -> int:
        """Content tokens and the stop token, if any: the rows of the response."""
        return len(self.token_ids) + (self.stop_id is not None)

    @property
    def emitted_ids(self) -> NDArray[np.int32]:
        """[R], the token of each row: content and the stop token, if any."""
        return self.token_ids if self.stop_id is None else np.append(self.token_ids, np.int32(self.stop_id))

    @property
    def num_tokens(self) -> int:
        """Tokens the learner feeds to the model: prompt and content."""
        return len(self.prompt.token_ids) + len(self.token_ids)


@dataclass(frozen=True)
class ScoredSample:
    """A sample with what its teachers said: one row for each of its response tokens."""

    sample: Sample
    result: ScoreResult
    shares: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """[R] by teacher, its share in each row's target; they sum to one where there is a target."""

    @property
    def rows(self) -> TargetRows:
        """The targets."""
        return self.result.rows


@dataclass(frozen=True)
class StepBatch:
    """All that one optimizer step learns from."""

    scored: list[ScoredSample]
    """By key."""
    drops: Counter[str] = field(default_factory=Counter)
    """Samples that the teacher could not score, by error code."""

    @property
    def num_response_tokens(self) -> int:
        """Z of spec §7: response tokens of the batch, whether or not their rows carry a target."""
        return sum(s.sample.num_response_tokens for s in self.scored)
