"""The loss of spec §7 written from its formulas: dense, float64, row by row, gradients by autograd.

It shares nothing with the implementation: no chunks, no partition trick, no analytic gradient, no padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DenseRow:
    """One target: ids and log-probabilities of its cells, ∅'s log mass, and whether it is a stop row."""

    ids: list[int]
    log_probs: list[float]
    log_residual: float
    is_stop: bool = False
    weight: float = 1.0


def dense_loss(
    logits_RV: Tensor, rows: list[DenseRow], *, beta: float, normalizer: float, skew: float = 0.1
) -> tuple[Tensor, Tensor]:
    """(loss, divergence of each row); differentiable in the logits, which are float64 and may hold −inf."""
    divergences = [row_divergence(logits_RV[i], row, beta, skew) for i, row in enumerate(rows)]
    zero = torch.where(logits_RV.isfinite(), logits_RV, 0.0).sum() * 0.0
    total = sum((row.weight * d for row, d in zip(rows, divergences, strict=True) if row.weight), start=zero)
    return total / normalizer, torch.stack(divergences).detach() if divergences else torch.zeros(0)


def row_divergence(logits_V: Tensor, row: DenseRow, beta: float, skew: float) -> Tensor:
    """D_β(t, p̃) of one row; D_0 for a stop row."""
    parts = partition(logits_V, row)
    if row.is_stop or beta == 0.0:
        return sum_terms([t.exp() * (t - p) for t, p in parts if t > -math.inf])
    if beta == 1.0:
        mixed = [(t, p, log_mix(t, p, skew)) for t, p in parts]
        return sum_terms([p.exp() * (p - m) for _, p, m in mixed if p > -math.inf])
    mixed = [(t, p, log_mix(t, p, 1.0 - beta)) for t, p in parts]
    forward = sum_terms([t.exp() * (t - m) for t, _, m in mixed if t > -math.inf])
    reverse = sum_terms([p.exp() * (p - m) for _, p, m in mixed if p > -math.inf])
    return beta * forward + (1.0 - beta) * reverse


def partition(logits_V: Tensor, row: DenseRow) -> list[tuple[Tensor, Tensor]]:
    """(log t, log p̃) of every cell, then of ∅."""
    finite = logits_V.isfinite()
    log_all = logits_V[finite].logsumexp(0)
    outside = finite.clone()
    outside[row.ids] = False
    impossible = torch.tensor(-math.inf, dtype=torch.float64)
    log_rest = logits_V[outside].logsumexp(0) - log_all if outside.any() else impossible
    cells = [logits_V[i] - log_all if finite[i] else impossible for i in row.ids]
    log_targets = torch.tensor([*row.log_probs, row.log_residual], dtype=torch.float64)
    return list(zip(log_targets, [*cells, log_rest], strict=True))


def log_mix(log_t: Tensor, log_p: Tensor, share_of_p: float) -> Tensor:
    """log((1 − share)·t + share·p), leaving out what is 0 so that autograd sees no −inf."""
    weighted_t, weighted_p = log_t + math.log(1.0 - share_of_p), log_p + math.log(share_of_p)
    if log_t == -math.inf:
        return weighted_p
    return weighted_t if log_p == -math.inf else torch.logaddexp(weighted_t, weighted_p)


def sum_terms(terms: list[Tensor]) -> Tensor:
    """Their sum; a float64 zero for none."""
    return sum(terms, start=torch.zeros((), dtype=torch.float64))
