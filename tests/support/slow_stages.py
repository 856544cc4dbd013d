"""A run whose stages sleep instead of computing: real Ray actors, the real loop, feed and staleness rule.

So what a step takes is what the loop makes of given stages, whatever the machine. Samples are finished one after the
other, as rollouts are, and the teacher takes one at a time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from support.fake_teacher import TEACHER, make_student
from support.random_rows import random_rows
from support.training import make_config, make_prompt, make_sample, score
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult
from tokbridge_trainer.actors import ActorFactories, ActorHandle, Actors
from tokbridge_trainer.feed import Feed
from tokbridge_trainer.learner import StepResult
from tokbridge_trainer.loop import TrainingLoop
from tokbridge_trainer.prompts import PromptSet
from tokbridge_trainer.restarts import Restarts
from tokbridge_trainer.rollout.tasks import RolloutReport, RolloutTask
from tokbridge_trainer.samples import Sample, StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.sources import RolloutSource
from tokbridge_trainer.staleness import StalenessGate
from tokbridge_trainer.supply import SampleSupply
from tokbridge_trainer.teachers.listing import configured_teachers
from tokbridge_trainer.teachers.member import StudentSide

SAMPLES_PER_STEP = 8
_IMPORTABLE = {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
"""Ray's workers know the driver's PYTHONPATH, but not what was added to its path since."""


@dataclass(frozen=True)
class Stages:
    """Seconds that each stage takes for one step's samples."""

    rollout_s: float
    teacher_s: float
    learner_s: float

    @property
    def slowest_s(self) -> float:
        """What a step takes where everything else happens meanwhile."""
        return max(self.rollout_s, self.teacher_s, self.learner_s)


@dataclass(frozen=True)
class Span:
    """One stage at work on a step, or on one of its samples; times of the machine's monotonic clock."""

    stage: str
    step: int
    start: float
    end: float


class Journal:
    """Where stages note what they did."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._visits: set[str] = set()

    def note(self, span: Span) -> None:
        """Keep a span."""
        self._spans.append(span)

    def first_visit(self, name: str) -> bool:
        """Whether it is the first time that somebody comes under this name."""
        is_first = name not in self._visits
        self._visits.add(name)
        return is_first

    def spans(self) -> list[Span]:
        """All that were kept, by start."""
        return sorted(self._spans, key=lambda span: span.start)


class SlowWorker:
    """A rollout worker that writes the same response to everything."""

    def __init__(self, stages: Stages, journal: ActorHandle, feed: ActorHandle) -> None:
        self._stages, self._journal, self._feed = stages, journal, feed
        self._version = -1

    def load(self) -> None:
        """Nothing to load."""

    def use_feed(self, feed: ActorHandle) -> None:
        """Send samples there."""
        self._feed = feed

    def set_weights(self, version: int) -> None:
        """Take a policy version."""
        self._version = version

    def write_and_keep(self, tasks: Sequence[RolloutTask]) -> tuple[RolloutReport, list[Sample]]:
        """Finish one sample after the other."""
        start, samples = time.monotonic(), []
        for task in tasks:
            time.sleep(self._stages.rollout_s / len(tasks))
            samples.append(make_sample([1], [2, 3], None, task.key))
            self._feed.submit.remote(samples[-1])
        end = time.monotonic()
        ray.get(self._journal.note.remote(Span("rollout", tasks[0].key.step, start, end)))
        return RolloutReport(end - start, len(samples), 2 * len(samples), self._version), samples


class DiesInTheMiddle(SlowWorker):
    """Its process ends when the feed has got half of the samples of step 1; the next one must write the others only."""

    def write_and_keep(self, tasks: Sequence[RolloutTask]) -> tuple[RolloutReport, list[Sample]]:
        """Finish one sample after the other, or not."""
        half = SAMPLES_PER_STEP // 2
        if tasks[0].key.step == 1 and ray.get(self._journal.first_visit.remote("step 1")):
            ray.get([self._feed.submit.remote(make_sample([1], [2, 3], None, task.key)) for task in tasks[:half]])
            os._exit(1)
        if tasks[0].key.step == 1:
            assert [task.key.prompt_index for task in tasks] == list(range(half, SAMPLES_PER_STEP))
        return super().write_and_keep(tasks)


class SlowTeacher:
    """A teacher client whose teacher takes one response at a time."""

    def __init__(self, stages: Stages, journal: ActorHandle) -> None:
        self._stages, self._journal = stages, journal
        self._turn = asyncio.Lock()

    async def connect(self, student: object) -> object:
        """Any student will do."""
        return TEACHER

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Random rows, after a while."""
        async with self._turn:
            start = time.monotonic()
            await asyncio.sleep(self._stages.teacher_s / SAMPLES_PER_STEP)
            end = time.monotonic()
        step = int(request.request_id.split("-")[0].removeprefix("step"))
        await self._journal.note.remote(Span("teacher", step, start, end))
        rows = random_rows(np.random.default_rng(0), request.num_rows)
        return score(make_sample([1], request.token_ids.tolist()), rows).result

    async def close(self) -> None:
        """Nothing to release."""


class SlowLearner:
    """A learner that learns nothing."""

    def __init__(self, stages: Stages, journal: ActorHandle) -> None:
        self._stages, self._journal = stages, journal
        self._version = 0

    def close(self) -> None:
        """As `Actors` ends a learner."""

    def load(self) -> None:
        """Nothing to load."""

    def weights(self) -> int:
        """The version stands for the weights."""
        return self._version

    def train_step(self, batch: StepBatch, plan: StepPlan) -> StepResult:
        """Take a while."""
        assert len(batch.scored) == SAMPLES_PER_STEP
        start = time.monotonic()
        time.sleep(self._stages.learner_s)
        self._version += 1
        ray.get(self._journal.note.remote(Span("learner", plan.step, start, time.monotonic())))
        return StepResult({"tokens/response": float(batch.num_response_tokens)}, [])


def run_stages(
    stages: Stages, max_lag: int, steps: int, worker_class: type[SlowWorker] = SlowWorker, max_restarts: int = 0
) -> list[Span]:
    """Run so many steps in the cluster that this process is connected to; what every stage did, by start."""
    journal: ActorHandle = actor_class(Journal).remote()
    actors = Actors(stage_factories(stages, journal, worker=worker_class), num_workers=1)
    try:
        actors.wait_until_ready()
        for _ in loop_over(actors, max_lag, steps, Restarts(max_restarts)).steps():
            pass
        return ray.get(journal.spans.remote())
    finally:
        actors.end()
        ray.kill(journal)


def stage_factories(
    stages: Stages,
    journal: ActorHandle,
    *,
    learner: type[SlowLearner] = SlowLearner,
    worker: type[SlowWorker] = SlowWorker,
) -> ActorFactories:
    """Actors of these classes, and a feed whose teacher is slow."""
    teachers, student = configured_teachers(make_config()), make_student()
    learners, workers, feeds = (actor_class(cls) for cls in (learner, worker, Feed))
    client_factory: Any = lambda *_: SlowTeacher(stages, journal)  # noqa: E731
    return ActorFactories(
        learner=lambda: learners.remote(stages, journal),
        feed=lambda: feeds.remote(teachers, StudentSide(student, {}, client_factory)),
        worker=lambda feed: workers.remote(stages, journal, feed),
    )


def actor_class(cls: type) -> Any:
    """An actor class that takes no CPU and knows the tests' modules."""
    return ray.remote(num_cpus=0, runtime_env=_IMPORTABLE)(cls)


def loop_over(actors: Actors, max_lag: int, steps: int, restarts: Restarts | None = None) -> TrainingLoop:
    """The training loop over these actors, the first weights sent."""
    config = make_config(prompts_per_step=SAMPLES_PER_STEP)
    prompts = PromptSet([make_prompt([1], index) for index in range(SAMPLES_PER_STEP)], 0, 0, shuffle=False)
    supply = SampleSupply(actors, restarts or Restarts(0), print)
    gate = StalenessGate(max_lag=max_lag, end_step=steps)
    loop = TrainingLoop(
        actors.learner,
        supply,
        {"on_policy": RolloutSource(config, prompts)},
        gate,
        lambda step: StepPlan(step, "on_policy", step, 0.5, 1e-3),
    )
    loop.send_weights()
    return loop
