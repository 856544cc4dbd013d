"""The learner: turns a batch of scored samples into one optimizer step of the student.

It holds the trained parameters, the optimizer and the policy version. One learner is one process, or several ranks
that share all of these (`ranks`); each rank is called with the whole batch and takes its share. In a run it lives in a
Ray actor or in Ray Train's workers; nothing here depends on that.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import set_seed

from tokbridge.errors import InvalidConfigError, NonFiniteGradientError
from tokbridge_trainer.checkpoint import TENSORS_FOLDER, RunState
from tokbridge_trainer.checkpoint_writing import CheckpointWriter, partial_path, write_checkpoint
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.evaluation.agreement import next_symbols
from tokbridge_trainer.evaluation.student import evaluate_student
from tokbridge_trainer.evaluation.student_reading import StudentReader
from tokbridge_trainer.head import lm_head
from tokbridge_trainer.learner_snapshot import take_snapshot
from tokbridge_trainer.learner_state import make_optimizer, optimizer_tensors
from tokbridge_trainer.micro_batches import rank_micro_batches
from tokbridge_trainer.outgoing_weights import OutgoingWeights
from tokbridge_trainer.projection import MicroBatchLoss
from tokbridge_trainer.ranks import ONE_RANK, Ranks
from tokbridge_trainer.sample_log import sample_lines
from tokbridge_trainer.samples import StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.step_metrics import LearnedRows, Metrics, loss_metrics, sample_metrics, target_metrics
from tokbridge_trainer.student import (
    StudentModel,
    causal_model,
    choose_device,
    compute_dtype,
    export_model,
    load_for_learning,
)
from tokbridge_trainer.student_module import StudentModule, examine, shard_student
from tokbridge_trainer.student_text import StudentText, write_tokenizer_files
from tokbridge_trainer.tensor_store import load_tensors
from tokbridge_trainer.weights import Rendezvous, WeightUpdate, apply_weights, snapshot_weights, whole_tensor


@dataclass(frozen=True)
class StepResult:
    """What a step reports."""

    metrics: Metrics
    samples: list[dict[str, str | int]]
    """Some of its samples, for people."""


class Learner:
    """One student, its optimizer and its policy version."""

    def __init__(
        self,
        config: TrainConfig,
        text: StudentText,
        checkpoint: Path | None,
        steps_done: int,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        """Load the student, from a checkpoint if given; one of several ranks keeps its shards only.

        Raises:
            SelfTestFailedError: the model's logits do not follow from its hidden states and head.
            InvalidConfigError: the model's head and the tokenizer's vocabulary differ in size.
        """
        self._config = config
        self._text = text
        self._ranks = ranks
        self._side_group = ranks.side_group()
        self._device = choose_device(config.device)
        # What is sharded goes to the device shard by shard: it may not fit there whole.
        loading_device = self._device if ranks.size == 1 else torch.device("cpu")
        self._model = load_for_learning(config, loading_device, checkpoint)
        self._check_head_size()
        self._student = StudentModule(causal_model(self._model))
        dtype = compute_dtype(config)
        if ranks.size > 1:
            shard_student(self._student, self._device, ranks.size, dtype)
        self._forward = examine(self._student, dtype, packing=config.packing)
        self._loss = MicroBatchLoss(self._student, self._forward, config.loss, config.seed)
        self._optimizer = make_optimizer(self._model, config.optimizer)
        if checkpoint is not None:
            moments = optimizer_tensors(self._model, self._optimizer)
            load_tensors(moments, checkpoint / TENSORS_FOLDER, self._side_group)
        self._version = steps_done
        self._outgoing = OutgoingWeights(config, self._model, self._device, ranks)
        self._checkpoints = CheckpointWriter()

    def weights(self) -> WeightUpdate:
        """The present policy version as rollout workers take it, on the first rank; on others nothing."""
        return self._outgoing.take(self._version)

    def open_rendezvous(self, world_size: int) -> Rendezvous:
        """Where learner and vLLM engines can meet, on the first rank's machine."""
        from tokbridge_trainer.weight_broadcast import open_rendezvous  # vLLM may not be installed

        return open_rendezvous(world_size)

    def join_broadcasts(self, rendezvous: Rendezvous) -> None:
        """Meet the engines there: `weights` then only announces, and `broadcast_weights` sends from GPU to GPU."""
        self._outgoing.join_broadcasts(rendezvous)

    def broadcast_weights(self) -> None:
        """Send what `weights` has announced last; returns when all engines have it."""
        self._outgoing.broadcast()

    def train_step(self, batch: StepBatch, plan: StepPlan) -> StepResult:
        """One optimizer step. A batch without samples changes nothing but counts as a step.

        Raises:
            CheckpointError: a checkpoint that was being written meanwhile has failed.
            NonFiniteGradientError: of the batch's gradient; the student is left as it was.
        """
        start = time.monotonic()
        self._checkpoints.check()
        self._seed_all(plan.step)
        rows = self._loss_rows(batch, plan.beta)
        grad_norm = self._apply_gradients(plan.lr) if batch.scored else 0.0
        metrics = loss_metrics(rows, batch.num_response_tokens)
        metrics |= target_metrics([s.rows for s in batch.scored]) | sample_metrics(batch, self._version)
        self._version += 1
        metrics |= {"grad_norm": grad_norm, "lr": plan.lr, "beta": plan.beta, "policy_version": float(self._version)}
        metrics["time/train_s"] = time.monotonic() - start
        return StepResult(metrics, sample_lines(batch, self._config.log.samples))

    def evaluate(self, rollouts: StepBatch | None, written: StepBatch | None) -> Metrics:
        """The loss on rollouts that are not learned from, and the metrics of `evaluate_student`; changes nothing."""
        rollouts, written = rollouts or StepBatch([]), written or StepBatch([])
        profile = self._text.profile
        symbols_V = next_symbols(profile.vocabulary, profile.stop_ids)
        reader = StudentReader(self._student, self._forward, symbols_V, self._ranks)
        metrics = evaluate_student(reader, symbols_V, written.scored, rollouts.scored, self._config.micro_batch_tokens)
        return metrics | self._evaluation_loss(rollouts)

    def _evaluation_loss(self, rollouts: StepBatch) -> Metrics:
        if not rollouts.scored:
            return {}
        self._model.eval()
        with torch.no_grad():
            rows = self._loss_rows(rollouts, self._config.loss.beta)
        self._student.release()
        self._model.train()
        return {"loss": loss_metrics(rows, rollouts.num_response_tokens)["loss"]}

    def save(self, root: Path, state: RunState) -> float:
        """Copy what a checkpoint needs of the learner and start to write it below `root`.

        Returns:
            Seconds that training stood still for it: the copy, and the wait for an earlier checkpoint.

        Raises:
            CheckpointError: that one could not be written.
        """
        start = time.monotonic()
        self._checkpoints.wait()
        first, profile = self._ranks.is_first, self._text.profile
        snapshot = take_snapshot(
            self._config, profile, self._model, self._optimizer, keep=first, group=self._side_group
        )
        if first:
            self._checkpoints.start(partial(write_checkpoint, root, state, self._config.save, snapshot.write))
        else:
            self._checkpoints.start(partial(snapshot.write_shards, partial_path(root, state.steps_done)))
        return time.monotonic() - start

    def finish_saving(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            CheckpointError: the last one could not be written.
        """
        self._checkpoints.wait()

    def export(self, folder: Path) -> None:
        """Write the model in Hugging Face format as others load it: merged, in the computation's type."""
        whole = self._whole_student()
        if whole is not None:
            export_model(whole, folder, compute_dtype(self._config))
            write_tokenizer_files(self._text.profile, folder)

    def _whole_student(self) -> StudentModel | None:
        """The student in one piece: itself, or where it is sharded a copy in CPU memory; None but on the first rank."""
        if self._ranks.size == 1:
            return self._model
        trained = snapshot_weights(self._model, self._version, torch.float32, keep=self._ranks.is_first)
        if not self._ranks.is_first:
            return None
        copy = load_for_learning(self._config, torch.device("cpu"), None)
        apply_weights(copy, trained)
        return copy

    def _loss_rows(self, batch: StepBatch, beta: float) -> LearnedRows:
        """The rows of all ranks, normalised over the whole batch (Z of spec §7).

        Under gradients, those of the rank's own micro-batches are added up, and summed over the ranks.
        """
        lengths = [scored.sample.num_tokens for scored in batch.scored]
        micro_batches = rank_micro_batches(
            lengths,
            self._config.micro_batch_tokens,
            rank=self._ranks.rank,
            ranks=self._ranks.size,
            packed=self._forward.packed,
        )
        normalizer = float(batch.num_response_tokens)
        parts = [
            self._loss.rows([batch.scored[i] for i in indices], beta=beta, normalizer=normalizer)
            for indices in micro_batches
        ]
        return LearnedRows.concatenate(self._ranks.all_gather(LearnedRows.concatenate(parts)))

    def _seed_all(self, step: int) -> None:
        """Dropout and whatever else draws: all follows from seed, step and rank, so a resumed run draws the same."""
        entropy = [self._config.seed, step, self._ranks.rank]
        set_seed(int(np.random.SeedSequence(entropy).generate_state(1)[0]))

    def _apply_gradients(self, lr: float) -> float:
        """Clip, step, clear; returns the norm before clipping."""
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        clipped = torch.nn.utils.clip_grad_norm_(trained, self._config.optimizer.max_grad_norm)
        norm = float(whole_tensor(clipped))
        if not math.isfinite(norm):
            # A step would make every weight NaN, and the next checkpoint would hold them.
            raise NonFiniteGradientError(
                f"the gradient's norm is {norm} in step {self._version}; checkpoints hold the weights from before: "
                "go on from one with a lower optimizer.lr or with dtype: float32"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def _check_head_size(self) -> None:
        head_rows = lm_head(causal_model(self._model)).weight.shape[0]
        vocabulary_size = self._text.profile.vocabulary.size
        if head_rows != vocabulary_size:
            raise InvalidConfigError(
                f"the LM head has {head_rows} rows, the vocabulary {vocabulary_size} ids", field="student.model"
            )
