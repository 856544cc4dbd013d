"""The Ray side of a run: the cluster, and the actors around learner, feed and rollout workers.

The classes themselves know nothing of Ray; this is the only module that makes actors of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tokbridge.description import TeacherDescription
from tokbridge.errors import ActorLostError, InvalidConfigError
from tokbridge.registration import StudentRegistration
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.feed import Feed, ListFile
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.lost_actors import ACTOR_LOST
from tokbridge_trainer.restarts import FEED, LEARNER, ROLLOUT
from tokbridge_trainer.rollout.tasks import RolloutReport, RolloutTask
from tokbridge_trainer.rollout.worker import RolloutWorker
from tokbridge_trainer.samples import Sample
from tokbridge_trainer.student_text import StudentText
from tokbridge_trainer.teachers.listing import TeacherList
from tokbridge_trainer.teachers.member import StudentSide
from tokbridge_trainer.threads import use_threads

_CLOSE_S = 5.0
"""For the feed to end its calls and to send its last traces."""
_GROUP_CLOSE_S = 90.0
"""For several ranks to end the call that they are in, or to be found dead."""

ActorHandle = Any
"""A Ray actor; its methods are called with `.remote(…)`."""


@dataclass(frozen=True)
class ActorFactories:
    """How the actors of a run are made; none is ready yet when its factory returns."""

    learner: Callable[[], ActorHandle]
    feed: Callable[[], ActorHandle]
    worker: Callable[[ActorHandle], ActorHandle]
    """A rollout worker that sends what it writes to the given feed."""
    learner_close_s: float = _CLOSE_S
    """How long the learner may take to end."""


class Actors:
    """The actors of one run. Feed and workers can be replaced; who holds a handle asks here for the present one."""

    def __init__(self, factories: ActorFactories, num_workers: int, ranks_per_broadcast_engine: int = 0) -> None:
        """Start all of them.

        Args:
            ranks_per_broadcast_engine: ranks of each worker's engine where weights are broadcast from GPU to GPU; 0:
                they go through the object store.
        """
        self._factories = factories
        self._ranks_per_engine = ranks_per_broadcast_engine
        self.feed = factories.feed()
        self.learner = factories.learner()
        self.workers = [factories.worker(self.feed) for _ in range(num_workers)]
        self._ranks_placement: PlacementGroup | None = None

    def wait_until_ready(self) -> dict[str, TeacherDescription]:
        """Connect the feed to the teachers, which are returned by name, and load learner and workers.

        Raises:
            TokbridgeError: a teacher does not answer, or cannot do what is asked; or the student cannot be loaded.
            ActorLostError: a process ended meanwhile.
        """
        workers = {f"{ROLLOUT} {index}": worker for index, worker in enumerate(self.workers)}
        loading = {name: actor.load.remote() for name, actor in workers.items()}
        loading_learner = self.learner.load.remote()
        teachers: dict[str, TeacherDescription] = _result_of_start(FEED, self.feed.connect.remote())
        self._ranks_placement = _result_of_start(LEARNER, loading_learner)
        for name, ref in loading.items():
            _result_of_start(name, ref)
        if self.broadcasts_weights:
            self._join_broadcasts()
        return teachers

    @property
    def broadcasts_weights(self) -> bool:
        """Whether learner and engines are one group, which none can leave or enter."""
        return self._ranks_per_engine > 0

    def _join_broadcasts(self) -> None:
        """Let learner and engines meet; each waits there for all others."""
        ranks = self._ranks_per_engine
        rendezvous = _result_of_start(LEARNER, self.learner.open_rendezvous.remote(1 + ranks * len(self.workers)))
        joining = {
            f"{ROLLOUT} {index}": worker.join_broadcasts.remote(rendezvous, 1 + ranks * index)
            for index, worker in enumerate(self.workers)
        }
        joining[LEARNER] = self.learner.join_broadcasts.remote(rendezvous)
        for name, ref in joining.items():
            _result_of_start(name, ref)

    def replace_worker(self, index: int) -> ActorHandle:
        """Start another worker in the place of a lost one; it has yet to load."""
        end_actor(self.workers[index])
        self.workers[index] = self._factories.worker(self.feed)
        return self.workers[index]

    def replace_feed(self) -> ActorHandle:
        """Start another feed in the place of a lost one; it has yet to connect."""
        end_actor(self.feed)
        self.feed = self._factories.feed()
        return self.feed

    def end(self) -> None:
        """End all of them, once the feed has sent its last traces."""
        for actor, timeout_s in ((self.feed, _CLOSE_S), (self.learner, self._factories.learner_close_s)):
            with suppress(RayError):  # an actor that is dead or busy closes nothing
                ray.get(actor.close.remote(), timeout=timeout_s)
        for actor in [self.feed, self.learner, *self.workers]:
            end_actor(actor)
        if self._ranks_placement is not None:
            # It outlives a learner that was killed, and the next one would wait for its resources.
            remove_placement_group(self._ranks_placement)


def _result_of_start(name: str, ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ACTOR_LOST as error:
        raise ActorLostError(f"the process of the {name} actor ended while it started", actor=name) from error


def end_actor(actor: ActorHandle) -> None:
    """End an actor's process, if it has not ended."""
    ray.kill(actor)


def actor_id(actor: ActorHandle) -> str:
    """What Ray's errors call an actor."""
    return actor._actor_id.hex()


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
    """Connect to a cluster, or start a local one; returns its address.

    Raises:
        InvalidConfigError: there is no cluster at the address.
    """
    # Ray would run its workers at niceness 15: behind a teacher on the same machine they would starve.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(
            address=address, num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, configure_logging=False
        )
    except (OSError, RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise InvalidConfigError(f"no Ray cluster answers at {address!r}: {error}", field="ray.address") from error
    return ray.get_runtime_context().gcs_address


@contextmanager
def started_actors(
    config: TrainConfig, teachers: TeacherList, text: StudentText, checkpoint: Path | None, steps_done: int
) -> Iterator[tuple[Actors, dict[str, TeacherDescription]]]:
    """Start all actors, connect the feed to the teachers, wait until all are ready, and end them with the block.

    Raises:
        TokbridgeError: a teacher does not answer, or cannot do what is asked.
        InvalidConfigError: the cluster has too few CPUs or GPUs for them.
    """
    _check_resources(config)
    factories = _factories(config, teachers, text, checkpoint, steps_done)
    actors = Actors(factories, config.rollout.workers, config.rollout.ranks_per_broadcast_engine)
    try:
        yield actors, actors.wait_until_ready()
    finally:
        actors.end()


def _factories(
    config: TrainConfig, teachers: TeacherList, text: StudentText, checkpoint: Path | None, steps_done: int
) -> ActorFactories:
    profile, resources = text.profile, config.ray
    feed_class = ray.remote(num_cpus=0)(Feed).options(scheduling_strategy=_feed_placement(config))
    worker_class = ray.remote(num_cpus=resources.rollout_cpus, num_gpus=resources.rollout_gpus)(_WorkerActor)
    student = StudentSide(StudentRegistration.from_profile(profile), config.chat_template_kwargs)
    return ActorFactories(
        learner_close_s=_CLOSE_S if config.ray.learners == 1 else _GROUP_CLOSE_S,
        learner=lambda: learner_class(config).remote(config, text, checkpoint, steps_done),
        feed=lambda: feed_class.remote(teachers, student, _list_file(config)),
        worker=lambda feed: worker_class.remote(config, profile.vocabulary, profile.stop_ids, feed),
    )


def learner_class(config: TrainConfig) -> Any:
    """The actor class of the learner: one process, or a group whose ranks take the resources themselves."""
    if config.ray.learners > 1:
        # Ray Train brings pandas and pyarrow along, which one process does not need.
        from tokbridge_trainer.learner_group import LearnerGroup

        return ray.remote(num_cpus=0)(LearnerGroup)
    return ray.remote(num_cpus=config.ray.learner_cpus, num_gpus=config.ray.learner_gpus)(_LearnerActor)


# Both actors are made empty and then loaded: of an error in an actor's constructor Ray hands on no more than the text.
class _LearnerActor(Learner):
    """The learner in its own process."""

    def __init__(self, config: TrainConfig, text: StudentText, checkpoint: Path | None, steps_done: int) -> None:
        self._arguments = (config, text, checkpoint, steps_done)

    def load(self) -> None:
        """Load the student; nothing else may be called before. The actor itself holds its resources."""
        use_threads(self._arguments[0].ray.threads)
        super().__init__(*self._arguments)

    def close(self) -> None:
        """Nothing is left of it but its process."""


class _WorkerActor(RolloutWorker):
    """A rollout worker in its own process, with the feed as its sink."""

    def __init__(
        self, config: TrainConfig, vocabulary: ByteVocabulary, stop_ids: frozenset[int], feed: ActorHandle
    ) -> None:
        self._arguments = (config, vocabulary, stop_ids)
        self._feed = feed
        self._written: list[Sample] = []
        self._sent: list[Any] = []

    def load(self) -> None:
        """Load the student; nothing else may be called before."""
        use_threads(self._arguments[0].ray.threads)
        super().__init__(*self._arguments, self._hand_on)

    def use_feed(self, feed: ActorHandle) -> None:
        """Send what is written from now on there."""
        self._feed = feed

    def write_and_keep(self, tasks: list[RolloutTask]) -> tuple[RolloutReport, list[Sample]]:
        """Write one response for each task, and see that the feed has got them.

        The samples are handed out as well, should the feed be lost.
        """
        self._written, self._sent = [], []
        report = self.write(tasks)
        with suppress(*ACTOR_LOST):  # The driver notices that, too.
            ray.get(self._sent)
        return report, self._written

    def _hand_on(self, sample: Sample) -> None:
        self._written.append(sample)
        self._sent.append(self._feed.submit.remote(sample))


def _list_file(config: TrainConfig) -> ListFile | None:
    return config.teachers_file and ListFile(config.teachers_file.resolve(), config.prompt_columns)


def _feed_placement(config: TrainConfig) -> Literal["DEFAULT"] | NodeAffinitySchedulingStrategy:
    """Anywhere; on the driver's node where the feed follows a file that lies there."""
    if config.teachers_file is None:
        return "DEFAULT"
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def idle_gpus(config: TrainConfig) -> float:
    """GPUs of the cluster, if no actor of the run takes any: Ray hides them from actors that do not ask."""
    taken = config.ray.learner_gpus + config.ray.rollout_gpus
    return 0.0 if taken else float(ray.cluster_resources().get("GPU", 0.0))


def _check_resources(config: TrainConfig) -> None:
    """An actor that never fits would make the run wait for ever."""
    available = ray.cluster_resources()
    workers = config.rollout.workers
    needed = {
        "CPU": config.ray.learners * config.ray.learner_cpus + workers * config.ray.rollout_cpus,
        "GPU": config.ray.learners * config.ray.learner_gpus + workers * config.ray.rollout_gpus,
    }
    for name, count in needed.items():
        if count > available.get(name, 0.0):
            raise InvalidConfigError(
                f"learners and rollout workers ask for {count:g} {name}s, the cluster has {available.get(name, 0.0):g}",
                field="ray",
            )
