"""Where the samples of a step come from: prompts that are yet to be answered, or responses of the warm start's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.samples import Sample, SampleKey
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.written_responses import WrittenSet

T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """All samples of a step."""

    tasks: Sequence[RolloutTask] = ()
    """To be written by the student."""
    samples: Sequence[Sample] = field(default=())
    """Written already."""

    @property
    def num_samples(self) -> int:
        """Samples that the step's batch is made of."""
        return len(self.tasks) + len(self.samples)


class SampleSource(Protocol):
    """Says what the samples of a step are."""

    def work(self, plan: StepPlan) -> Work:
        """The same each time it is asked."""
        ...


class RolloutSource:
    """Responses of the student."""

    def __init__(self, config: TrainConfig, prompts: PromptSet) -> None:
        self._config = config
        self._prompts = prompts

    def work(self, plan: StepPlan) -> Work:
        """The step's prompts, `samples_per_prompt` times each.

        A prompt may come twice in a step that spans epochs: samples are numbered on, so that keys differ.
        """
        per_step = self._config.prompts_per_step
        repeats: dict[int, int] = {}
        tasks: list[RolloutTask] = []
        for prompt in self._prompts.at(plan.index * per_step, per_step):
            for _ in range(self._config.samples_per_prompt):
                number = repeats[prompt.index] = repeats.get(prompt.index, -1) + 1
                tasks.append(RolloutTask(SampleKey(plan.step, prompt.index, number), prompt))
        return Work(tasks=tasks)


class WarmStartSource:
    """Responses that the teacher wrote."""

    def __init__(self, responses: WrittenSet, per_step: int) -> None:
        self._responses = responses
        self._per_step = per_step

    def work(self, plan: StepPlan) -> Work:
        """The step's responses."""
        return Work(samples=self._responses.samples(plan.step, self._per_step))


def share_out(items: Sequence[T], num_shares: int) -> list[Sequence[T]]:
    """Cut into consecutive shares of like size, so that samples of one prompt stay together; the last may be empty."""
    size = -(-len(items) // num_shares)
    return [items[i * size : (i + 1) * size] for i in range(num_shares)]
