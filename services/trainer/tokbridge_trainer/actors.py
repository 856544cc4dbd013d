"""The Ray side of a run: the cluster, and the actors around learner, feed and rollout workers.

The classes themselves know nothing of Ray; this is the only module that makes actors of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from tokbridge.description import TeacherDescription
from tokbridge.errors import InvalidConfigError
from tokbridge.registration import StudentRegistration
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.feed import Feed
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.rollout.worker import RolloutWorker
from tokbridge_trainer.samples import Sample
from tokbridge_trainer.student_text import StudentText
from tokbridge_trainer.teacher_credentials import load_credentials
from tokbridge_trainer.threads import use_threads

ActorHandle = Any
"""A Ray actor; its methods are called with `.remote(…)`."""


@dataclass(frozen=True)
class Actors:
    """The actors of one run, ready."""

    teacher: TeacherDescription
    learner: ActorHandle
    feed: ActorHandle
    workers: list[ActorHandle]


@contextmanager
def ray_cluster(config: TrainConfig) -> Iterator[None]:
    """Connect to the configured cluster, or start a local one and stop it at the end.

    A cluster that this process is already connected to is used and left alone.
    """
    if ray.is_initialized():
        yield
        return
    start_ray(config.ray.address)
    try:
        yield
    finally:
        ray.shutdown()


def start_ray(address: str | None = None, num_cpus: int | None = None) -> str:
    """Connect to a cluster, or start a local one; returns its address."""
    # Ray would run its workers at niceness 15: behind a teacher on the same machine they would starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(address=address, num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, configure_logging=False)
    return ray.get_runtime_context().gcs_address


@contextmanager
def started_actors(
    config: TrainConfig, text: StudentText, checkpoint: Path | None, steps_done: int
) -> Iterator[Actors]:
    """Start all actors, connect the feed to the teacher, wait until all are ready, and end them with the block.

    Raises:
        TokbridgeError: the teacher does not answer, or cannot do what is asked.
        InvalidConfigError: the cluster has too few CPUs or GPUs for them.
    """
    _check_resources(config)
    profile = text.profile
    feed: ActorHandle = ray.remote(num_cpus=0)(Feed).remote(
        config.teacher,
        StudentRegistration.from_profile(profile),
        teacher_arguments(config),
        load_credentials(config.teacher),
    )
    learner = ray.remote(num_cpus=config.ray.learner_cpus, num_gpus=config.ray.learner_gpus)(_LearnerActor).remote(
        config, text, checkpoint, steps_done
    )
    worker_class = ray.remote(num_cpus=config.ray.rollout_cpus, num_gpus=config.ray.rollout_gpus)(_WorkerActor)
    workers = [
        worker_class.remote(config, profile.vocabulary, profile.stop_ids, feed) for _ in range(config.rollout.workers)
    ]
    actors: list[ActorHandle] = [feed, learner, *workers]
    try:
        teacher: TeacherDescription = ray.get(feed.connect.remote())
        ray.get([actor.load.remote() for actor in [learner, *workers]])
        yield Actors(teacher, learner, feed, workers)
    finally:
        for actor in actors:
            ray.kill(actor)


# Both actors are made empty and then loaded: of an error in an actor's constructor Ray hands on no more than the text.
class _LearnerActor(Learner):
    """The learner in its own process."""

    def __init__(self, config: TrainConfig, text: StudentText, checkpoint: Path | None, steps_done: int) -> None:
        self._arguments = (config, text, checkpoint, steps_done)

    def load(self) -> None:
        """Load the student; nothing else may be called before."""
        use_threads(self._arguments[0].ray.threads)
        super().__init__(*self._arguments)


class _WorkerActor(RolloutWorker):
    """A rollout worker in its own process, with the feed as its sink."""

    def __init__(
        self, config: TrainConfig, vocabulary: ByteVocabulary, stop_ids: frozenset[int], feed: ActorHandle
    ) -> None:
        self._arguments = (config, vocabulary, stop_ids)
        self._feed = feed

    def load(self) -> None:
        """Load the student; nothing else may be called before."""

        def sink(sample: Sample) -> None:
            self._feed.submit.remote(sample)

        use_threads(self._arguments[0].ray.threads)
        super().__init__(*self._arguments, sink)


def teacher_arguments(config: TrainConfig) -> dict[str, Any]:
    """Arguments of the teacher's chat template: its own where given, else the student's."""
    own = config.teacher.chat_template_kwargs
    return config.chat_template_kwargs if own is None else own


def _check_resources(config: TrainConfig) -> None:
    """An actor that never fits would make the run wait for ever."""
    available = ray.cluster_resources()
    workers = config.rollout.workers
    needed = {
        "CPU": config.ray.learner_cpus + workers * config.ray.rollout_cpus,
        "GPU": config.ray.learner_gpus + workers * config.ray.rollout_gpus,
    }
    for name, count in needed.items():
        if count > available.get(name, 0.0):
            raise InvalidConfigError(
                f"learner and rollout workers ask for {count:g} {name}s, the cluster has {available.get(name, 0.0):g}",
                field="ray",
            )
