"""Inputs that the loss benchmarks share: hidden states, a head of Qwen3.5's size, sparse targets, a memory gauge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tokbridge_trainer.target_tensors import TargetTensors

VOCABULARY, HIDDEN, CELLS = 248_320, 1_024, 32
"""Qwen3.5's head rows, its smallest hidden size, and the cells of a truncated row."""


@dataclass(frozen=True)
class LossInputs:
    """One batch: student side and targets."""

    hidden_RH: Tensor
    weight_VH: Tensor
    targets: TargetTensors

    def zero_grad(self) -> None:
        """Forget gradients, so that every run allocates its own."""
        self.hidden_RH.grad = self.weight_VH.grad = None


def make_inputs(num_rows: int, *, train_head: bool, dtype: torch.dtype = torch.float32) -> LossInputs:
    """Random hidden states and head (logits of standard deviation 3), and rows of `CELLS` cells with 2 % left over."""
    generator = torch.Generator().manual_seed(0)
    hidden_RH = torch.randn(num_rows, HIDDEN, generator=generator).to(dtype).requires_grad_()
    weight_VH = torch.empty(VOCABULARY, HIDDEN).normal_(0.0, 3.0 / math.sqrt(HIDDEN), generator=generator)
    return LossInputs(hidden_RH, weight_VH.to(dtype).requires_grad_(train_head), make_targets(num_rows, generator))


def make_targets(num_rows: int, generator: torch.Generator, vocabulary: int = VOCABULARY) -> TargetTensors:
    """Peaked rows, cells of distinct ids."""
    firsts_R1 = torch.randint(vocabulary // CELLS, (num_rows, 1), generator=generator)
    log_probs_RK = (torch.randn(num_rows, CELLS, generator=generator) * 3).log_softmax(1) + math.log(0.98)
    return TargetTensors(
        cell_ids=(firsts_R1 + torch.arange(CELLS) * (vocabulary // CELLS)).flatten(),
        cell_log_probs=log_probs_RK.flatten(),
        row_offsets=torch.arange(num_rows + 1) * CELLS,
        residual_log_mass=torch.full((num_rows,), math.log(0.02)),
        is_stop=torch.zeros(num_rows, dtype=torch.bool),
        weights=torch.ones(num_rows),
        cases=torch.zeros(num_rows, dtype=torch.uint8),
        emitted_log_probs=log_probs_RK[:, 0].clone(),
        response_index=torch.zeros(num_rows, dtype=torch.int64),
        row_index=torch.arange(num_rows),
    )


def peak_memory_bytes(action: Callable[[], object]) -> int:
    """Peak resident memory during `action`, less what was resident before (Linux; this process must run alone)."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = _status_bytes("VmRSS")
    action()
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
