"""What a learner gives in several settings, as plain values, so that one on two ranks can be compared with one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from support.training import make_config, random_scored, score
from tokbridge.targets import RowCase, TargetRows
from tokbridge_trainer.checkpoint import RunState, list_checkpoints
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.ranks import Ranks
from tokbridge_trainer.samples import SampleKey, StepBatch
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.student_text import StudentText, load_student_text
from tokbridge_trainer.weights import whole_tensor

BETA = 0.5
LAST_PLAN = StepPlan(4, "on_policy", 4, BETA, 1e-2)


@dataclass(frozen=True)
class Case:
    """A setting."""

    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 7
    model: str = "student"
    """Folder below the one of all models."""
    tolerance: float = 1e-5
    """Between one rank and two, relative."""


CASES = {
    "full": Case({"micro_batch_tokens": 20}),
    "tied, checkpointing": Case({"gradient_checkpointing": True, "micro_batch_tokens": 40}, model="tied"),
    "lora": Case({"lora": {"rank": 4}}),
    "one sample for two ranks": Case(samples=1),
}
MORE_CASES = {
    "one micro-batch": Case(),
    "padded": Case({"packing": False, "micro_batch_tokens": 60}),
    "untied, checkpointing": Case({"gradient_checkpointing": True, "micro_batch_tokens": 40}),
    "random other rows left out": Case({"loss": {"whitespace": "random"}, "micro_batch_tokens": 20}),
    "lora, tied, checkpointing": Case({"lora": {"rank": 4}, "gradient_checkpointing": True}, model="tied"),
    "lora, no row for one rank": Case({"lora": {"rank": 4}}, samples=1),
    "soft-capped head": Case(model="softcapped"),
    "scaled head": Case(model="scaled"),
    "linear attention": Case(model="hybrid"),
    # Rounded at other places: FSDP gathers parameters in bfloat16, and with them the residual stream.
    "bfloat16": Case({"dtype": "bfloat16"}, tolerance=5e-2),
}


@dataclass(frozen=True)
class Outcome:
    """What one learner gave."""

    loss: float
    gradients: dict[str, np.ndarray]
    evaluation: dict[str, float]
    step_metrics: list[dict[str, float]]
    weights: dict[str, np.ndarray]
    next_loss: float
    """Of a step after these."""
    resumed_loss: float
    """Of the same step, by a learner that came from a checkpoint of the others."""


def run_cases(ranks: Ranks, folder: Path) -> dict[str, Outcome]:
    """The cases for every day, with the models below a folder."""
    return {name: run_case(ranks, folder, case) for name, case in CASES.items()}


def run_more_cases(ranks: Ranks, folder: Path) -> dict[str, Outcome]:
    """The others."""
    return {name: run_case(ranks, folder, case) for name, case in MORE_CASES.items()}


def run_case(ranks: Ranks, folder: Path, case: Case) -> Outcome:
    """Gradients of one batch; an evaluation; steps, one without samples, one without targets; and a checkpoint."""
    config = case_config(folder, case)
    text = load_student_text(config)
    batches = [make_batch(text, case.samples, seed) for seed in (0, 1)]
    learner = Learner(config, text, None, 0, ranks)
    wake_adapters(learner)
    loss, gradients = gradients_of(learner, batches[0])
    evaluation = learner.evaluate(batches[0], batches[1])
    steps = [
        learner.train_step(batch, StepPlan(step, "on_policy", step, BETA, 1e-2)).metrics
        for step, batch in enumerate([batches[0], StepBatch([]), without_targets(batches[0]), batches[1]])
    ]
    weights = dict(learner.weights().arrays)
    save(learner, checkpoint_root(folder, case, ranks), len(steps))
    learner.export(checkpoint_root(folder, case, ranks) / "export")
    resumed = resume(folder, case, ranks, ranks.size)
    next_losses = [float(each.train_step(batches[0], LAST_PLAN).metrics["loss"]) for each in (learner, resumed)]
    return Outcome(loss, gradients, evaluation, steps, weights, *next_losses)


def save(learner: Learner, root: Path, steps_done: int) -> None:
    """Write a checkpoint, and wait for it on every rank."""
    learner.save(root, RunState(steps_done, 0, "data"))
    learner.finish_saving()
    if learner._side_group is not None:
        dist.barrier(learner._side_group)


def resume(folder: Path, case: Case, ranks: Ranks, written_by: int) -> Learner:
    """A learner from the checkpoint that so many ranks have written."""
    config = case_config(folder, case)
    (checkpoint,) = list_checkpoints(checkpoint_root(folder, case, Ranks(0, written_by)))
    return Learner(config, load_student_text(config), checkpoint, LAST_PLAN.step, ranks)


def checkpoint_root(folder: Path, case: Case, ranks: Ranks) -> Path:
    """Where learners of so many ranks write."""
    (name,) = [name for name, other in (CASES | MORE_CASES).items() if other is case]
    return folder / f"written by {ranks.size}" / name


def case_config(folder: Path, case: Case) -> TrainConfig:
    """The configuration of a case."""
    return make_config(folder / case.model, optimizer={"lr": 1e-2}, **case.options)


def gradients_of(learner: Learner, batch: StepBatch) -> tuple[float, dict[str, np.ndarray]]:
    """The loss of a batch, and its whole gradients before clipping; they are forgotten again."""
    rows = learner._loss_rows(batch, BETA)
    parameters = learner._model.named_parameters()
    gradients = {name: whole_tensor(p.grad).numpy().copy() for name, p in parameters if p.grad is not None}
    learner._optimizer.zero_grad(set_to_none=True)
    return float(rows.divergence.sum(dtype=np.float64)) / batch.num_response_tokens, gradients


def without_targets(batch: StepBatch) -> StepBatch:
    """The same samples, none of whose rows the teacher could match."""
    return StepBatch([score(scored.sample, _excluded(scored.rows.num_rows)) for scored in batch.scored])


def _excluded(count: int) -> TargetRows:
    nothing = {
        name: np.zeros(count, np.float32)
        for name in ("residual_unmapped", "residual_control", "residual_truncated", "emitted_log_prob")
    }
    return TargetRows(
        first_row=0,
        cases=np.full(count, RowCase.EXCLUDED, np.uint8),
        flags=np.zeros(count, np.uint8),
        row_offsets=np.zeros(count + 1, np.int64),
        cell_ids=np.empty(0, np.int32),
        cell_log_probs=np.empty(0, np.float32),
        **nothing,
    )


def wake_adapters(learner: Learner) -> None:
    """Fresh adapters end in zeros, behind which no gradient would reach the other half."""
    for name, parameter in learner._model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.05)


def make_batch(text: StudentText, samples: int, seed: int) -> StepBatch:
    """Random samples, some of them long."""
    rng = np.random.default_rng(seed)
    stop_id, size = text.profile.turn_end_id, text.profile.tokenizer_size
    return StepBatch([random_scored(rng, size, SampleKey(seed, i, 0), stop_id=stop_id) for i in range(samples)])
