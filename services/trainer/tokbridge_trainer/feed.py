"""Sends each sample to its teachers the moment it is finished, and keeps the targets until their step is trained.

Who is asked, and what becomes of a failure, is decided in `teachers/`; here samples become steps. In a run the feed
lives in an asynchronous Ray actor; nothing here depends on that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokbridge.description import TeacherDescription
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.sample_traces import NoTraces, SampleTracer, open_sample_traces
from tokbridge_trainer.samples import EVALUATION_STEP, Sample, SampleKey, ScoredSample, StepBatch
from tokbridge_trainer.step_collector import StepCollector
from tokbridge_trainer.teachers.following import Reading, follow, look_at, usable
from tokbridge_trainer.teachers.listing import TeacherList
from tokbridge_trainer.teachers.member import StudentSide
from tokbridge_trainer.teachers.panel import LeftOut, Resend
from tokbridge_trainer.teachers.switch import Switch
from tokbridge_trainer.teachers.tally import Fields, StepTally


@dataclass(frozen=True)
class FeedReport:
    """How long a step's targets took, and what happened between its samples and their teachers."""

    seconds: float
    """From the first sample's arrival to the last outcome."""
    metrics: Fields = field(default_factory=dict)
    """Numbers and names by teacher."""


@dataclass(frozen=True)
class ListFile:
    """A `teachers_file` that is followed."""

    path: Path
    carried: frozenset[str]
    """Columns that travel with the prompts."""


class Feed:
    """Scores samples concurrently and hands out the batch of each step."""

    def __init__(
        self,
        teachers: TeacherList,
        student: StudentSide,
        file: ListFile | None = None,
        traces: NoTraces | SampleTracer | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            teachers: the first list.
            file: what it holds at `connect` and later counts instead, if it is usable.
            traces: None opens those that the environment asks for.
        """
        self._traces = open_sample_traces() if traces is None else traces
        self._teachers = teachers
        self._file = file
        self._switch = Switch(replace(student, traces=self._traces))
        self._steps: dict[int, StepCollector] = {}
        self._handed_out: set[int] = set()
        self._tallies: dict[int, StepTally] = {}
        self._first_arrival: dict[int, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._fault: BaseException | None = None
        """What ended the following of the file."""
        self._changed = asyncio.Condition()

    async def connect(self) -> dict[str, TeacherDescription]:
        """Connect to all teachers, check them and register the student with each; they are returned by name.

        Raises:
            TokbridgeError: one does not answer, or is not the teacher that is meant.
        """
        if self._file is None:
            return await self._switch.start(self._teachers)
        path, carried = self._file.path, self._file.carried
        found = look_at(path)
        try:
            self._teachers = usable(found, path, carried)
        except InvalidConfigError as error:
            self._switch.refused(error)
        descriptions = await self._switch.start(self._teachers)
        self._following = asyncio.create_task(self._follow(path, found, carried))
        return descriptions

    async def _follow(self, path: Path, found: Reading, carried: frozenset[str]) -> None:
        """Follow the file. It has no end but a fault, and a step may be waiting for a list that would never come."""
        (self._fault,) = await asyncio.gather(follow(path, found, carried, self._switch), return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()

    async def news(self) -> list[str]:
        """What has happened to the teachers, as soon as there is anything that has not been told.

        A report comes when its step has ended, and one that waits for a teacher may have no end.
        """
        return await self._switch.news()

    async def submit(self, sample: Sample) -> None:
        """Take a finished sample and start scoring it; a sample that was here before is not scored again."""
        step = sample.key.step
        collector = self._steps.setdefault(step, StepCollector())
        self._first_arrival.setdefault(step, time.monotonic())
        if collector.expect(sample.key):
            task = asyncio.create_task(self._resolve(sample, collector))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def submit_all(self, samples: Sequence[Sample]) -> None:
        """Take samples that may come late: of a step that has been handed out none are needed."""
        for sample in samples:
            if sample.key.step not in self._handed_out:
                await self.submit(sample)

    async def arrived(self, step: int) -> frozenset[SampleKey] | None:
        """Which samples of a step are here, scored or not; None: the step has been handed out."""
        if step in self._handed_out:
            return None
        collector = self._steps.get(step)
        return frozenset() if collector is None else collector.keys

    async def collect(self, step: int, num_samples: int, *written: Sequence[Sample]) -> tuple[FeedReport, StepBatch]:
        """Wait until all samples of a step have their outcome, and hand them out; the step is forgotten here.

        Args:
            written: samples that are there already. (Of two calls, the later one may reach an actor first.)

        Raises:
            TokbridgeError: a sample could not be scored, and its teacher's fallback is to end the run.
        """
        collector = self._steps.setdefault(step, StepCollector())
        self._handed_out.discard(step)
        for samples in written:
            for sample in samples:
                await self.submit(sample)
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._fault or collector.failure or collector.num_resolved >= num_samples
            )
        if failure := self._fault or collector.failure:
            raise failure
        del self._steps[step]
        self._handed_out.add(step)
        seconds = time.monotonic() - self._first_arrival.pop(step, time.monotonic())
        return self._report(step, seconds), collector.batch()

    async def close(self) -> None:
        """Cancel what is under way, release the channels and send the last traces."""
        tasks = [*self._tasks, *([self._following] if self._following else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._switch.close()
        await asyncio.to_thread(self._traces.close)

    async def _resolve(self, sample: Sample, collector: StepCollector) -> None:
        """Score a sample and record the outcome. Any fault is one: it must reach `collect`, or a step would hang."""
        (outcome,) = await asyncio.gather(self._score(sample), return_exceptions=True)
        if isinstance(outcome, ScoredSample):
            collector.add(outcome)
        elif isinstance(outcome, LeftOut):
            collector.drop(outcome.reason)
        else:
            collector.fail(outcome)
        async with self._changed:
            self._changed.notify_all()

    async def _score(self, sample: Sample) -> ScoredSample | LeftOut:
        """Ask the present teachers, and those after them if one leaves before it has answered."""
        tally = self._tallies.setdefault(sample.key.step, StepTally())
        while True:
            outcome = await self._switch.panel.score(sample, tally)
            if not isinstance(outcome, Resend):
                return outcome

    def _report(self, step: int, seconds: float) -> FeedReport:
        metrics = self._tallies.pop(step, StepTally()).metrics()
        if step >= EVALUATION_STEP:  # events belong to the next step that is trained
            return FeedReport(seconds, metrics)
        return FeedReport(seconds, metrics | self._switch.take_changes())
