"""What the driver keeps of a step while its samples are written and scored: enough to have lost ones made again.

Plain records; who calls actors with them is `supply.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

from tokbridge_trainer.feed import FeedReport
from tokbridge_trainer.rollout.tasks import RolloutReport, RolloutTask
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.sources import Work


@dataclass(eq=False)
class Job:
    """Tasks that one rollout worker has in hand or has finished."""

    worker: int
    tasks: list[RolloutTask]
    samples_ref: Any = None
    """Ray reference to the written samples."""
    report: RolloutReport | None = None
    """None until it is finished: all samples are written, and the feed has got them or is lost itself."""


@dataclass(eq=False)
class Order:
    """The samples of one step on their way to its batch."""

    step: int
    work: Work
    ordered_s: float
    """Clock, as all times here."""
    jobs: list[Job] = field(default_factory=list)
    orphans: list[RolloutTask] = field(default_factory=list)
    """Tasks whose samples only the feed has: their worker was lost before it could hand them out."""
    batch_ref: Any = None
    report: FeedReport | None = None
    written_s: float = 0.0
    scored_s: float = 0.0
    failure: Exception | None = None
    """Why there will be no batch."""

    @property
    def is_written(self) -> bool:
        """Whether no worker has tasks of it in hand."""
        return all(job.report for job in self.jobs)

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.failure is not None or (self.report is not None and self.is_written)

    def unfinished_jobs(self, worker: int) -> list[Job]:
        """What a worker has in hand."""
        return [job for job in self.jobs if job.worker == worker and job.report is None]

    def take_back(self, job: Job, arrived: Collection[SampleKey] | None) -> None:
        """The worker of a job is lost: leave it the tasks that are to be done again, and strike it out if none are.

        Args:
            arrived: keys of the samples that the feed has got; None: it has all it needs.
        """
        is_done = [arrived is None or task.key in arrived for task in job.tasks]
        self.orphans += compress(job.tasks, is_done)
        job.tasks = [task for task, done in zip(job.tasks, is_done, strict=True) if not done]
        if not job.tasks:
            self.jobs.remove(job)

    def metrics(self) -> dict[str, float]:
        """How long the step's samples took: the longest rollout, the teacher, and the teacher beyond the rollouts."""
        assert self.report is not None, "the order is complete"
        return {
            "time/rollout_s": max((job.report.seconds for job in self.jobs if job.report), default=0.0),
            "time/teacher_s": self.report.seconds,
            "time/teacher_wait_s": max(0.0, self.scored_s - max(self.written_s, self.ordered_s)),
        }
