"""The loss's loop over row chunks: logits, divergence, gradient, and the gradient's way into hidden states and head.

One buffer [chunk, V] is all that is held of the vocabulary (two with a softcap), and it is used again by every chunk.
The module knows nothing of autograd.

Axes: R rows, B rows of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokbridge_trainer.divergence import Divergence
from tokbridge_trainer.lm_head import LMHead, arithmetic_dtype
from tokbridge_trainer.partition import Partition, RowFacts
from tokbridge_trainer.target_tensors import TargetTensors

CHUNK_BYTES = 256 * 2**20
"""Memory that the buffers of a chunk may take."""
_PART_BYTES = 8 * 12
"""What a part of a row's partition takes: about a dozen float64 temporaries."""


@dataclass(frozen=True)
class LossProblem:
    """The constants of one call."""

    targets: TargetTensors
    divergence: Divergence
    normalizer: float
    logit_scale: float = 1.0
    softcap: float | None = None
    emitted_ids_R: Tensor | None = None
    chunk_rows: int | None = None

    def rows_at_a_time(self, vocabulary_size: int, dtype: torch.dtype) -> int:
        """`chunk_rows`, or what fits `CHUNK_BYTES`, evened out over the chunks; at least one."""
        if self.chunk_rows is not None:
            return self.chunk_rows
        widest = int(self.targets.row_offsets.diff().max()) if self.targets.num_rows else 0
        logits_bytes = vocabulary_size * dtype.itemsize * (1 if self.softcap is None else 2)
        limit = max(1, CHUNK_BYTES // (logits_bytes + widest * _PART_BYTES))
        chunks = max(1, math.ceil(self.targets.num_rows / limit))
        return max(1, math.ceil(self.targets.num_rows / chunks))


@dataclass(frozen=True)
class Gradients:
    """Accumulators of the gradients that are wanted; None for the others."""

    hidden_RH: Tensor | None
    weight_VH: Tensor | None
    bias_V: Tensor | None

    @classmethod
    def zeros(cls, hidden_RH: Tensor, head: LMHead, needed: tuple[bool, bool, bool]) -> Gradients:
        """`needed`: hidden, weight, bias. The head's accumulate in the arithmetic's dtype."""
        dtype = arithmetic_dtype(hidden_RH.dtype)
        return cls(
            torch.zeros_like(hidden_RH) if needed[0] else None,
            torch.zeros_like(head.weight, dtype=dtype) if needed[1] else None,
            torch.zeros_like(head.bias, dtype=dtype) if needed[2] and head.bias is not None else None,
        )

    def add(self, head: LMHead, gradient_BV: Tensor, hidden_BH: Tensor, rows: slice) -> None:
        """Take a chunk's gradient in hidden·Wᵀ + b."""
        if self.hidden_RH is not None:
            head.hidden_gradient_into(self.hidden_RH[rows], gradient_BV)
        if self.weight_VH is not None:
            head.add_weight_gradient(self.weight_VH, gradient_BV, hidden_BH)
        if self.bias_V is not None:
            self.bias_V.add_(gradient_BV.sum(0))

    @property
    def wanted(self) -> bool:
        """Whether any gradient is."""
        return any(gradient is not None for gradient in (self.hidden_RH, self.weight_VH, self.bias_V))


def run_chunks(problem: LossProblem, head: LMHead, hidden_RH: Tensor, gradients: Gradients) -> RowFacts:
    """Facts of all rows; adds the gradients of Σ weight · divergence / Z to `gradients`."""
    targets, dtype = problem.targets, arithmetic_dtype(hidden_RH.dtype)
    step = problem.rows_at_a_time(head.vocabulary_size, dtype)
    buffer_BV = hidden_RH.new_empty((min(step, targets.num_rows), head.vocabulary_size), dtype=dtype)
    host_offsets = targets.row_offsets.cpu()
    facts = [RowFacts.none(hidden_RH.device)]
    for start in range(0, targets.num_rows, step):
        rows = slice(start, min(start + step, targets.num_rows))
        hidden_BH = head.operand(hidden_RH[rows])
        logits_BV = buffer_BV[: len(hidden_BH)]
        slope_BV = head.logits_into(logits_BV, hidden_BH)
        emitted_ids_B = None if problem.emitted_ids_R is None else problem.emitted_ids_R[rows]
        weights_B = targets.weights[rows].double() / problem.normalizer
        partition = Partition.of_rows(targets, host_offsets, rows)
        facts.append(partition.differentiate(logits_BV, problem.divergence, weights_B, emitted_ids_B))
        if gradients.wanted:
            head.chain(logits_BV, slope_BV)
            gradients.add(head, logits_BV, hidden_BH, rows)
    return RowFacts(*(torch.cat(column) for column in zip(*facts, strict=True)))
