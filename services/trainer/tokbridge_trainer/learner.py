"""The learner: turns a batch of scored samples into one optimizer step of the student.

It holds the trained parameters, the optimizer and the policy version. In a run it lives in a Ray actor; nothing here
depends on that.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import set_seed

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.checkpoint import TENSORS_FOLDER, RunState
from tokbridge_trainer.checkpoint_writing import CheckpointWriter, write_checkpoint
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.evaluation.agreement import next_symbols
from tokbridge_trainer.evaluation.student import evaluate_student
from tokbridge_trainer.evaluation.student_reading import StudentReader
from tokbridge_trainer.head import lm_head
from tokbridge_trainer.learner_snapshot import take_snapshot
from tokbridge_trainer.learner_state import make_optimizer, optimizer_tensors
from tokbridge_trainer.micro_batches import plan_micro_batches
from tokbridge_trainer.projection import MicroBatchLoss
from tokbridge_trainer.sample_log import sample_lines
from tokbridge_trainer.samples import EVALUATION_STEP, StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.step_metrics import LearnedRows, Metrics, loss_metrics, sample_metrics, target_metrics
from tokbridge_trainer.student import causal_model, choose_device, compute_dtype, export_model, load_for_learning
from tokbridge_trainer.student_text import StudentText, write_tokenizer_files
from tokbridge_trainer.tensor_store import load_tensors
from tokbridge_trainer.weights import WeightSnapshot, snapshot_weights


@dataclass(frozen=True)
class StepResult:
    """What a step reports."""

    metrics: Metrics
    samples: list[dict[str, str | int]]
    """Some of its samples, for people."""


class Learner:
    """One student, its optimizer and its policy version."""

    def __init__(self, config: TrainConfig, text: StudentText, checkpoint: Path | None, steps_done: int) -> None:
        """Load the student, from a checkpoint if given.

        Raises:
            SelfTestFailedError: the model's logits do not follow from its hidden states and head.
            InvalidConfigError: the model's head and the tokenizer's vocabulary differ in size.
        """
        self._config = config
        self._text = text
        self._device = choose_device(config.device)
        self._model = load_for_learning(config, self._device, checkpoint)
        self._check_head_size()
        self._loss = MicroBatchLoss(causal_model(self._model), config.loss, compute_dtype(config))
        self._optimizer = make_optimizer(self._model, config.optimizer)
        if checkpoint is not None:
            load_tensors(optimizer_tensors(self._model, self._optimizer), checkpoint / TENSORS_FOLDER)
        self._version = steps_done
        self._checkpoints = CheckpointWriter()

    def weights(self) -> WeightSnapshot:
        """The trained parameters of the present policy version."""
        return snapshot_weights(self._model, self._version, compute_dtype(self._config))

    def train_step(self, batch: StepBatch, plan: StepPlan) -> StepResult:
        """One optimizer step. A batch without samples changes nothing but counts as a step.

        Raises:
            CheckpointError: a checkpoint that was being written meanwhile has failed.
        """
        start = time.monotonic()
        self._checkpoints.check()
        self._seed_all(plan.step)
        rows = self._loss_rows(batch, plan.beta, plan.step)
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
        reader = StudentReader(causal_model(self._model), symbols_V, compute_dtype(self._config))
        metrics = evaluate_student(reader, symbols_V, written.scored, rollouts.scored, self._config.micro_batch_tokens)
        return metrics | self._evaluation_loss(rollouts)

    def _evaluation_loss(self, rollouts: StepBatch) -> Metrics:
        if not rollouts.scored:
            return {}
        self._model.eval()
        with torch.no_grad():
            rows = self._loss_rows(rollouts, self._config.loss.beta, EVALUATION_STEP)
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
        snapshot = take_snapshot(self._config, self._text.profile, self._model, self._optimizer)
        self._checkpoints.start(partial(write_checkpoint, root, state, self._config.save, snapshot.write))
        return time.monotonic() - start

    def finish_saving(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            CheckpointError: the last one could not be written.
        """
        self._checkpoints.wait()

    def export(self, folder: Path) -> None:
        """Write the model in Hugging Face format as others load it: merged, in the computation's type."""
        export_model(self._model, folder, compute_dtype(self._config))
        write_tokenizer_files(self._text.profile, folder)

    def _loss_rows(self, batch: StepBatch, beta: float, step: int) -> LearnedRows:
        """All micro-batches, normalised over the whole batch (Z of spec §7); under gradients these are added up."""
        lengths = [scored.sample.num_tokens for scored in batch.scored]
        generator = np.random.default_rng([self._config.seed, step])
        parts = [
            self._loss.rows(
                [batch.scored[i] for i in indices],
                beta=beta,
                normalizer=float(batch.num_response_tokens),
                generator=generator,
            )
            for indices in plan_micro_batches(lengths, self._config.micro_batch_tokens)
        ]
        return LearnedRows.concatenate(parts)

    def _seed_all(self, step: int) -> None:
        """Dropout and whatever else draws: all follows from seed and step, so a resumed run draws the same."""
        set_seed(int(np.random.SeedSequence([self._config.seed, step]).generate_state(1)[0]))

    def _apply_gradients(self, lr: float) -> float:
        """Clip, step, clear; returns the norm before clipping."""
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        norm = torch.nn.utils.clip_grad_norm_(trained, self._config.optimizer.max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)

    def _check_head_size(self) -> None:
        head_rows = lm_head(causal_model(self._model)).weight.shape[0]
        vocabulary_size = self._text.profile.vocabulary.size
        if head_rows != vocabulary_size:
            raise InvalidConfigError(
                f"the LM head has {head_rows} rows, the vocabulary {vocabulary_size} ids", field="student.model"
            )
