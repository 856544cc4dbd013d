"""The partition trick: a chunk of logits becomes row divergences and, in place, their gradient (spec §7).

A row's divergence depends on its logits only through those of its cells and ∅'s coarse logit, the logsumexp of all
others. With the cells masked to −inf, the softmax of what is left is the gradient of that logsumexp; times the
divergence's gradient in ∅, and with the cells' own gradients written over it, it is the gradient in all logits. No
1 − Σ occurs anywhere. What is small, the parts of each row, is in float64; the module knows neither heads nor autograd.

Axes: B rows of a chunk, C cells of a chunk, V vocabulary, P parts of a row (its cells, padded, then ∅).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tokbridge_trainer.divergence import Divergence, unreachable_rows
from tokbridge_trainer.target_tensors import TargetTensors


class RowFacts(NamedTuple):
    """What is known of each row afterwards, one value a row, detached."""

    divergence: Tensor
    """Float64 nats, unweighted."""
    log_residual: Tensor
    """Float64, the student's log p̃(∅)."""
    argmax_ids: Tensor
    """Int64, the student's most probable token."""
    emitted_log_probs: Tensor
    """Float64, the student's log-probability of the emitted token; NaN where that is not given."""
    unreachable: Tensor
    """Bool, the target has mass where the student's logit is −inf."""

    @classmethod
    def none(cls, device: torch.device) -> RowFacts:
        """Facts of zero rows."""
        empty = torch.empty(0, dtype=torch.float64, device=device)
        return cls(empty, empty, empty.long(), empty, empty.bool())


@dataclass(frozen=True)
class Partition:
    """The targets of a chunk's rows: where their cells lie among the logits, and log t on every part."""

    cell_ids_C: Tensor
    rows_C: Tensor
    """Row of the chunk that a cell belongs to."""
    slots_C: Tensor
    """Which part of its row a cell is."""
    log_target_BP: Tensor
    is_stop_B: Tensor

    @classmethod
    def of_rows(cls, targets: TargetTensors, host_offsets: Tensor, rows: slice) -> Partition:
        """The partition of some rows; `host_offsets` is `targets.row_offsets` in host memory."""
        bounds = host_offsets[rows.start : rows.stop + 1]
        cells = slice(int(bounds[0]), int(bounds[-1]))
        widths = bounds.diff()
        rows_C = torch.repeat_interleave(torch.arange(len(widths)), widths)
        slots_C = torch.arange(cells.start, cells.stop) - bounds[rows_C]
        device = targets.cell_ids.device
        rows_C, slots_C = rows_C.to(device), slots_C.to(device)
        shape = (len(widths), max(1, int(widths.max())) + 1)
        log_target_BP = torch.full(shape, -math.inf, dtype=torch.float64, device=device)
        log_target_BP[rows_C, slots_C] = targets.cell_log_probs[cells].double()
        log_target_BP[:, -1] = targets.residual_log_mass[rows].double()
        return cls(targets.cell_ids[cells], rows_C, slots_C, log_target_BP, targets.is_stop[rows])

    def differentiate(
        self, logits_BV: Tensor, divergence: Divergence, weights_B: Tensor, emitted_ids_B: Tensor | None
    ) -> RowFacts:
        """Facts of the rows; the logits (contiguous) are overwritten with the gradient of Σ weight · divergence."""
        emitted_logits_B = None
        if emitted_ids_B is not None:
            emitted_logits_B = logits_BV.gather(1, emitted_ids_B[:, None])[:, 0].double()
        flat_logits = logits_BV.view(-1)
        flat_cells_C = self.rows_C * logits_BV.shape[1] + self.cell_ids_C
        coarse_BP = torch.full_like(self.log_target_BP, -math.inf)
        coarse_BP[self.rows_C, self.slots_C] = flat_logits[flat_cells_C].double()
        flat_logits.index_fill_(0, flat_cells_C, -math.inf)
        rest = _exp_in_place(logits_BV)
        coarse_BP[:, -1] = rest.log_sum_B

        divergence_B, gradient_BP = divergence(self.log_target_BP, coarse_BP, self.is_stop_B)
        gradient_BP = torch.where(weights_B[:, None] > 0, gradient_BP * weights_B[:, None], 0.0)
        logits_BV.mul_((gradient_BP[:, -1] / rest.sum_B).to(logits_BV.dtype)[:, None])
        flat_logits.index_copy_(0, flat_cells_C, gradient_BP[self.rows_C, self.slots_C].to(logits_BV.dtype))
        return self._facts(coarse_BP, divergence_B, rest, emitted_logits_B)

    def _facts(
        self, coarse_BP: Tensor, divergence_B: Tensor, rest: _MaskedSoftmax, emitted_logits_B: Tensor | None
    ) -> RowFacts:
        log_normalizer_B = coarse_BP.logsumexp(1)
        cell_ids_BP = torch.zeros_like(coarse_BP, dtype=torch.int64)
        cell_ids_BP[self.rows_C, self.slots_C] = self.cell_ids_C
        best_logit_B, best_slot_B = coarse_BP[:, :-1].max(1)
        best_id_B = cell_ids_BP.gather(1, best_slot_B[:, None])[:, 0]
        unknown_B = torch.full_like(divergence_B, math.nan)
        return RowFacts(
            divergence=divergence_B,
            log_residual=rest.log_sum_B - log_normalizer_B,
            argmax_ids=torch.where(best_logit_B >= rest.top_logit_B, best_id_B, rest.top_id_B),
            emitted_log_probs=unknown_B if emitted_logits_B is None else emitted_logits_B - log_normalizer_B,
            unreachable=unreachable_rows(self.log_target_BP, coarse_BP),
        )


class _MaskedSoftmax(NamedTuple):
    """Softmax of a row without its cells, not yet divided by its sum."""

    top_logit_B: Tensor
    top_id_B: Tensor
    sum_B: Tensor
    """At least 1 but where every logit is −inf: there 1 stands in for 0."""
    log_sum_B: Tensor


def _exp_in_place(logits_BV: Tensor) -> _MaskedSoftmax:
    """Overwrite logits with exp(logit − largest of the row); rows without a finite logit become zeros."""
    top_B, top_id_B = logits_BV.max(1)
    is_empty_B = top_B == -math.inf
    logits_BV.sub_(torch.where(is_empty_B, 0.0, top_B)[:, None]).exp_()
    sum_B = torch.where(is_empty_B, 1.0, logits_BV.sum(1).double())
    return _MaskedSoftmax(top_B.double(), top_id_B, sum_B, top_B.double() + sum_B.log())
