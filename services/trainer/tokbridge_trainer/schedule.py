"""What each step of a run is: its phase, its divergence and its learning rate. Pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_sections import OptimizerConfig

Phase = Literal["warm_start", "on_policy"]


@dataclass(frozen=True)
class StepPlan:
    """One optimizer step."""

    step: int
    phase: Phase
    index: int
    """Step within its phase."""
    beta: float
    lr: float


def plan_step(config: TrainConfig, step: int, on_policy_steps: int) -> StepPlan:
    """The plan of step `step` (0-based over both phases: the warm start comes first)."""
    warm_start = config.warm_start
    if warm_start is not None and step < warm_start.steps:
        peak = warm_start.lr or config.optimizer.lr
        lr = learning_rate(config.optimizer, peak, step, warm_start.steps)
        return StepPlan(step, "warm_start", step, warm_start.beta, lr)
    index = step - config.warm_start_steps
    lr = learning_rate(config.optimizer, config.optimizer.lr, index, on_policy_steps)
    return StepPlan(step, "on_policy", index, config.loss.beta, lr)


def learning_rate(optimizer: OptimizerConfig, peak: float, index: int, total: int) -> float:
    """Rate of step `index` of a phase of `total` steps: linear warmup to `peak`, then the schedule.

    The first step already learns (1/warmup of the peak), and the last decayed step is one above the end value.
    """
    if index < optimizer.warmup:
        return peak * (index + 1) / optimizer.warmup
    if optimizer.schedule == "constant":
        return peak
    progress = (index - optimizer.warmup) / max(1, total - optimizer.warmup)
    share = 1 - progress if optimizer.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (optimizer.min_lr_ratio + (1 - optimizer.min_lr_ratio) * share)
