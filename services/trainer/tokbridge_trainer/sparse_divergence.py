"""The loss of spec §7 from logits that are there already, for models whose head `bpm_loss` does not know.

`bpm_loss` is the better one where the head is a plain matrix: it never holds the logits of all rows. This one needs
them and a gradient of their size, and adds one chunk.

Axes: R rows with a target, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.divergence import Divergence
from tokbridge_trainer.lm_head import arithmetic_dtype
from tokbridge_trainer.loss import LossOutput, check_facts, check_shapes
from tokbridge_trainer.loss_chunks import LossProblem
from tokbridge_trainer.partition import Partition, RowFacts
from tokbridge_trainer.target_tensors import TargetTensors


def sparse_divergence(
    logits_RV: Tensor,
    targets: TargetTensors,
    *,
    normalizer: float,
    beta: float = 0.5,
    skew: float = 0.1,
    emitted_ids: Tensor | None = None,
    chunk_rows: int | None = None,
) -> LossOutput:
    """(Σ content rows D_β + Σ stop rows D_0) / Z, differentiable in the logits.

    Args:
        logits_RV: the student's logits at the rows of `targets`, at temperature 1, any float dtype; not changed.
        targets, normalizer, beta, skew, emitted_ids, chunk_rows: as `bpm_loss` takes them.

    Raises:
        InvalidConfigError: β, λ or Z out of range.
        InvalidDataError: logits and targets of different numbers of rows.
        TokenIdOutOfRangeError: a cell's id is not a column of the logits.
        NonFiniteLogitsError: NaN or +inf logits, or target mass on a token whose logit is −inf; details say where.
    """
    if not normalizer > 0:
        raise InvalidConfigError(f"the normalizer must be positive, not {normalizer}", field="normalizer")
    check_shapes(len(logits_RV), logits_RV.shape[1], targets)
    problem = LossProblem(targets, Divergence(beta, skew), normalizer, emitted_ids_R=emitted_ids, chunk_rows=chunk_rows)
    loss, *columns = _DenseLoss.apply(logits_RV, problem, torch.is_grad_enabled())
    facts = RowFacts(*columns)
    check_facts(facts, targets)
    emitted_log_probs = None if emitted_ids is None else facts.emitted_log_probs
    return LossOutput(loss, facts.divergence, facts.log_residual, facts.argmax_ids, emitted_log_probs)


class _DenseLoss(torch.autograd.Function):
    """Loss and row facts; the gradient in the logits is made in the forward pass, the backward pass only scales it."""

    @staticmethod
    def forward(ctx: Any, logits_RV: Tensor, problem: LossProblem, training: bool) -> tuple[Tensor, ...]:
        gradient_RV = torch.empty_like(logits_RV) if training and ctx.needs_input_grad[0] else None
        facts = _run_chunks(problem, logits_RV, gradient_RV)
        weights_R = problem.targets.weights
        loss = torch.where(weights_R > 0, facts.divergence * weights_R, 0.0).sum() / problem.normalizer
        ctx.save_for_backward(gradient_RV)
        ctx.mark_non_differentiable(*facts)
        return loss.to(arithmetic_dtype(logits_RV.dtype)), *facts

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator makes `ctx` positional)
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, None, None]:
        (gradient_RV,) = ctx.saved_tensors
        return None if gradient_RV is None else gradient_RV * grad_outputs[0].to(gradient_RV.dtype), None, None


def _run_chunks(problem: LossProblem, logits_RV: Tensor, gradient_RV: Tensor | None) -> RowFacts:
    """Facts of all rows; writes the gradient of Σ weight · divergence / Z."""
    targets, dtype = problem.targets, arithmetic_dtype(logits_RV.dtype)
    step = problem.rows_at_a_time(logits_RV.shape[1], dtype)
    host_offsets = targets.row_offsets.cpu()
    facts = [RowFacts.none(logits_RV.device)]
    for start in range(0, targets.num_rows, step):
        rows = slice(start, min(start + step, targets.num_rows))
        chunk_BV = logits_RV[rows].to(dtype, memory_format=torch.contiguous_format, copy=True)
        partition = Partition.of_rows(targets, host_offsets, rows)
        weights_B = targets.weights[rows].double() / problem.normalizer
        emitted_ids_B = None if problem.emitted_ids_R is None else problem.emitted_ids_R[rows]
        facts.append(partition.differentiate(chunk_BV, problem.divergence, weights_B, emitted_ids_B))
        if gradient_RV is not None:
            gradient_RV[rows] = chunk_BV
    return RowFacts(*(torch.cat(column) for column in zip(*facts, strict=True)))
