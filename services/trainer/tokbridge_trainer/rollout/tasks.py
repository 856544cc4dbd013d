"""What rollout workers are asked for and what they answer; which engine writes is none of its business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokbridge_trainer.rollout.weight_check import Shapes
from tokbridge_trainer.samples import Prompt, Sample, SampleKey
from tokbridge_trainer.weights import WeightUpdate

Sink = Callable[[Sample], None]


@dataclass(frozen=True)
class RolloutTask:
    """One sample to write."""

    key: SampleKey
    prompt: Prompt


@dataclass(frozen=True)
class RolloutReport:
    """What one call of a worker took."""

    seconds: float
    num_samples: int
    num_tokens: int
    policy_version: int


OnFinished = Callable[[RolloutTask, NDArray[np.int64]], None]
"""Called the moment a response is finished, with its ids as sampled: the stop token, if any, is the last."""


class Writer(Protocol):
    """One copy of the student in one engine."""

    @property
    def parameters(self) -> Shapes:
        """What a whole weight update holds."""
        ...

    def load(self, update: WeightUpdate) -> None:
        """Put a whole update in place of the present weights; nothing is being written meanwhile."""
        ...

    def write(self, tasks: Sequence[RolloutTask], on_finished: OnFinished) -> None:
        """Write one response for each task, in any order."""
        ...
