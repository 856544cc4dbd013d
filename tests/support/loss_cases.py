"""Random and hand-made targets for tests of the loss, as dense rows and as the tensors the loss takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from support.dense_loss import DenseRow
from tokbridge.targets import RowCase
from tokbridge_trainer.target_tensors import TargetTensors


def target_tensors(rows: list[DenseRow]) -> TargetTensors:
    """The same rows as `TargetTensors`, all of one response."""
    num_rows = len(rows)
    widths = torch.tensor([0, *(len(row.ids) for row in rows)])
    return TargetTensors(
        cell_ids=torch.tensor([i for row in rows for i in row.ids], dtype=torch.int64),
        cell_log_probs=torch.tensor([lp for row in rows for lp in row.log_probs], dtype=torch.float32),
        row_offsets=widths.cumsum(0),
        residual_log_mass=torch.tensor([row.log_residual for row in rows], dtype=torch.float32),
        is_stop=torch.tensor([row.is_stop for row in rows], dtype=torch.bool),
        weights=torch.tensor([row.weight for row in rows], dtype=torch.float32),
        cases=torch.tensor([RowCase.STOP if row.is_stop else RowCase.ALIGNED for row in rows], dtype=torch.uint8),
        emitted_log_probs=torch.zeros(num_rows),
        response_index=torch.zeros(num_rows, dtype=torch.int64),
        row_index=torch.arange(num_rows),
    )


def dense_row(ids: list[int], probs: list[float], **options: Any) -> DenseRow:
    """A row from probabilities, rounded to float32 logs as they travel; ∅ takes what is left of one."""
    log_probs = [_float32_log(p) for p in probs]
    return DenseRow(ids, log_probs, _float32_log(max(0.0, 1.0 - math.fsum(probs))), **options)


def random_dense_rows(rng: np.random.Generator, num_rows: int, vocabulary_size: int) -> list[DenseRow]:
    """Sharp and flat rows, zero cells, every size of residual, stop rows, masked rows."""
    return [_random_row(rng, vocabulary_size) for _ in range(num_rows)]


def _random_row(rng: np.random.Generator, vocabulary_size: int) -> DenseRow:
    is_stop, weight = bool(rng.random() < 0.2), float(rng.choice([1.0, 1.0, 0.0, 0.5]))
    num_cells = 1 if is_stop else int(rng.integers(1, vocabulary_size - 1))
    ids = rng.choice(vocabulary_size, num_cells, replace=False).tolist()
    residual = float(rng.choice([0.0, 1e-9, 1e-3, 0.5, 1.0 - 1e-6, 1.0]))
    shares = rng.dirichlet(np.full(num_cells, rng.choice([0.05, 1.0, 20.0]))) * (rng.random(num_cells) < 0.8)
    total = shares.sum()
    shares = np.eye(num_cells)[0] if total < 1e-30 else shares / total
    probs = shares * (1.0 - residual)
    log_probs = [_float32_log(p) for p in probs]
    return DenseRow(ids, log_probs, _float32_log(residual), is_stop, weight)


def _float32_log(probability: float) -> float:
    return float(np.float32(math.log(probability))) if probability > 0.0 else -math.inf
