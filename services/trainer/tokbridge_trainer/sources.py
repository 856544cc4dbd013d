"""Where the samples of a step come from: rollout workers, or the warm start's file. Both end at the feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokbridge_trainer.actors import ActorHandle
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.rollout.worker import RolloutTask
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.written_responses import WrittenSet


@dataclass(frozen=True)
class StartedSamples:
    """Samples on their way to the feed."""

    count: int
    refs: list[Any]
    """Ray references that end when the samples are written; they carry errors."""


class SampleSource(Protocol):
    """Starts the samples of a step without waiting for them."""

    def start(self, plan: StepPlan) -> StartedSamples:
        """Start the samples of a step."""
        ...


class RolloutSource:
    """Responses of the student, shared out among the rollout workers."""

    def __init__(self, config: TrainConfig, prompts: PromptSet, workers: list[ActorHandle]) -> None:
        self._config = config
        self._prompts = prompts
        self._workers = workers

    def start(self, plan: StepPlan) -> StartedSamples:
        """Queue the step's prompts at the workers, `samples_per_prompt` times each."""
        tasks = self._tasks(plan)
        return StartedSamples(len(tasks), share_out(tasks, self._workers))

    def _tasks(self, plan: StepPlan) -> list[RolloutTask]:
        """A prompt may come twice in a step that spans epochs: samples are numbered on, so that keys differ."""
        per_step = self._config.prompts_per_step
        repeats: dict[int, int] = {}
        tasks: list[RolloutTask] = []
        for prompt in self._prompts.at(plan.index * per_step, per_step):
            for _ in range(self._config.samples_per_prompt):
                number = repeats[prompt.index] = repeats.get(prompt.index, -1) + 1
                tasks.append(RolloutTask(SampleKey(plan.step, prompt.index, number), prompt))
        return tasks


def share_out(tasks: Sequence[RolloutTask], workers: Sequence[ActorHandle]) -> list[Any]:
    """Give each worker its share, samples of one prompt together; returns references to their reports."""
    share = -(-len(tasks) // len(workers))
    parts = [(worker, tasks[i * share : (i + 1) * share]) for i, worker in enumerate(workers)]
    return [worker.write.remote(part) for worker, part in parts if part]


class WarmStartSource:
    """Responses that the teacher wrote."""

    def __init__(self, responses: WrittenSet, per_step: int, feed: ActorHandle) -> None:
        self._responses = responses
        self._per_step = per_step
        self._feed = feed

    def start(self, plan: StepPlan) -> StartedSamples:
        """Hand the step's responses to the feed."""
        samples = self._responses.samples(plan.step, self._per_step)
        return StartedSamples(len(samples), [self._feed.submit.remote(sample) for sample in samples])
