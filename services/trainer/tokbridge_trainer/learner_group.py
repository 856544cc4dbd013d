"""A learner on several ranks that is called like one: Ray Train starts and watches the ranks, a board carries commands.

To its callers it is an actor with the learner's methods. When a rank fails, Ray Train ends them all. What was wrong
with the student or its data is then raised by the call that waits; a rank that was lost takes the whole group with it,
so the caller sees what it sees when the one process of a learner is lost.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import ray
import torch
from ray.actor import exit_actor
from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.placement_group import PlacementGroup

from tokbridge.errors import TokbridgeError
from tokbridge_trainer.checkpoint import RunState
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.learner import StepResult
from tokbridge_trainer.learner_ranks import STARTED, Command, CommandBoard, RankSettings, serve_rank
from tokbridge_trainer.samples import StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.step_metrics import Metrics
from tokbridge_trainer.student_text import StudentText
from tokbridge_trainer.weights import Rendezvous, WeightUpdate

_FOLDER = ".ray_train"
"""Below the run's folder; Ray Train insists on one that all nodes see."""
_CLOSE_S = 60.0
"""Ray Train notices a lost rank within seconds, and waits half a minute for the others' process group."""

_log = logging.getLogger(__name__)


class LearnerGroup:
    """The ranks of one learner. It must itself live in an actor: with it they end."""

    def __init__(self, config: TrainConfig, text: StudentText, checkpoint: Path | None, steps_done: int) -> None:
        self._config = config
        self._board: Any = ray.remote(num_cpus=0)(CommandBoard).remote(config.ray.learners)
        self._settings = RankSettings(self._board, config, text, checkpoint, steps_done)
        self._number = STARTED
        self._running: Future[Any] | None = None

    def load(self) -> PlacementGroup | None:
        """Start the ranks and wait until every one has loaded its share.

        Returns:
            What holds the ranks' resources. Ray Train gives it back, but not where this process is killed.

        Raises:
            TokbridgeError: one could not.
        """
        # The ranks stay where they were started: paths of the configuration may be relative.
        os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
        trainer = _trainer(self._config, self._settings)
        self._running = ThreadPoolExecutor(1, "ray-train").submit(trainer.fit)
        return self._answer()

    def weights(self) -> WeightUpdate:
        """As `Learner.weights`."""
        return self._call("weights")

    def open_rendezvous(self, world_size: int) -> Rendezvous:
        """As `Learner.open_rendezvous`."""
        return self._call("open_rendezvous", world_size)

    def join_broadcasts(self, rendezvous: Rendezvous) -> None:
        """As `Learner.join_broadcasts`."""
        return self._call("join_broadcasts", rendezvous)

    def broadcast_weights(self) -> None:
        """As `Learner.broadcast_weights`."""
        return self._call("broadcast_weights")

    def train_step(self, batch: StepBatch, plan: StepPlan) -> StepResult:
        """As `Learner.train_step`."""
        return self._call("train_step", batch, plan)

    def evaluate(self, rollouts: StepBatch | None, written: StepBatch | None) -> Metrics:
        """As `Learner.evaluate`."""
        return self._call("evaluate", rollouts, written)

    def save(self, root: Path, state: RunState) -> float:
        """As `Learner.save`."""
        return self._call("save", root, state)

    def finish_saving(self) -> None:
        """As `Learner.finish_saving`."""
        return self._call("finish_saving")

    def export(self, folder: Path) -> None:
        """As `Learner.export`."""
        return self._call("export", folder)

    def close(self) -> None:
        """End the ranks between two commands, and wait until Ray Train has given back what it took."""
        if self._running is not None and not self._running.done():
            self._number += 1
            ray.get(self._board.post.remote(self._number, None))
            wait([self._running], timeout=_CLOSE_S)

    def _call(self, method: str, *arguments: object) -> Any:
        self._number += 1
        ray.get(self._board.post.remote(self._number, Command(method, [ray.put(value) for value in arguments])))
        return self._answer()

    def _answer(self) -> Any:
        """The first rank's answer to the last command, or what ended the ranks."""
        assert self._running is not None, "`load` comes first"
        answer: Future[Any] = self._board.answer_to.remote(self._number).future()
        wait([answer, self._running], return_when=FIRST_COMPLETED)
        if not answer.done():
            self._fail(self._running.exception())
        (reference,) = answer.result()
        return ray.get(reference)

    def _fail(self, error: BaseException | None) -> None:
        """Raise the fault of a rank; without one, end this process. It does not return."""
        faults = error.worker_failures.values() if isinstance(error, WorkerGroupError) else ()
        for fault in faults:
            if _is_fault_of_its_own(fault):
                raise fault
        _log.error("the learner has lost a rank: %s", error)
        # An actor that exits first waits for the calls that it has made: one of them is for an answer that never comes.
        ray.kill(self._board)
        exit_actor()


def _trainer(config: TrainConfig, settings: RankSettings) -> TorchTrainer:
    """Ray Train over the configured ranks. It restarts nothing: a run goes back to its checkpoint as a whole."""
    gpus = config.ray.learner_gpus
    return TorchTrainer(
        serve_rank,
        train_loop_config={"settings": settings},
        # gloo beside NCCL: what is on the CPU, such as metrics and checkpoints, is exchanged too.
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=config.ray.learners,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": config.ray.learner_cpus, **({"GPU": gpus} if gpus else {})},
        ),
        run_config=RunConfig(
            name=_FOLDER,
            storage_path=str(config.output_dir.resolve()),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
        ),
    )


def _is_fault_of_its_own(failure: Exception) -> bool:
    """Whether a rank failed by itself. Other errors of the runtime may be the echo of another rank's death."""
    return isinstance(failure, TokbridgeError | torch.OutOfMemoryError)
