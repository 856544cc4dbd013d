"""The Byte-Prefix-Marginalization loss, fused with the LM head (spec §7).

Hidden states go in, the loss comes out; logits exist for one chunk of rows at a time, and gradients are computed in the
forward pass, so that nothing of a chunk outlives it. The module knows nothing of models, optimizers, or how targets are
made; `partition` holds the mathematics of a chunk, `divergence` that of a row.

Axes: R rows with a target, V vocabulary, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tokbridge.errors import InvalidConfigError, InvalidDataError, NonFiniteLogitsError, TokenIdOutOfRangeError
from tokbridge_trainer.divergence import Divergence
from tokbridge_trainer.lm_head import LMHead, arithmetic_dtype
from tokbridge_trainer.loss_chunks import Gradients, LossProblem, run_chunks
from tokbridge_trainer.partition import RowFacts
from tokbridge_trainer.target_tensors import TargetTensors


@dataclass(frozen=True)
class LossOutput:
    """The loss, and facts of every row, detached, in the order of the targets' rows."""

    loss: Tensor
    """Scalar, Σ weight · divergence / Z; float32 (float64 for float64 hidden states)."""
    row_divergence: Tensor
    """[R] float64 nats, unweighted, masked rows included; stop rows: KL(b‖p̄)."""
    row_log_residual: Tensor
    """[R] float64, the student's log-probability of ∅ (stop rows: log(1 − p(s*)))."""
    row_argmax_ids: Tensor
    """[R] int64, the student's most probable token."""
    row_emitted_log_probs: Tensor | None
    """[R] float64, the student's log-probability of the emitted token; None if `emitted_ids` was not given."""


def bpm_loss(
    hidden_RH: Tensor,
    head_weight_VH: Tensor,
    targets: TargetTensors,
    *,
    normalizer: float,
    beta: float = 0.5,
    skew: float = 0.1,
    head_bias: Tensor | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    emitted_ids: Tensor | None = None,
    chunk_rows: int | None = None,
) -> LossOutput:
    """Loss of spec §7, (Σ content rows D_β + Σ stop rows D_0) / Z, differentiable in hidden states and head.

    Args:
        hidden_RH: final hidden states at the rows of `targets`, any float dtype.
        head_weight_VH: head weight; may be frozen, tied, or of another dtype than the hidden states.
        targets: R rows, on the device of `hidden_RH`.
        normalizer: Z, the number of student response tokens of the whole batch, masked and excluded ones included.
        beta: 0 forward KL, 1 skewed reverse KL, between them the generalized Jensen–Shannon divergence.
        skew: λ of β = 1.
        head_bias: [V]; may hold −inf for tokens that cannot be sampled.
        logit_scale: factor on the logits, before the softcap.
        softcap: logits become cap·tanh(logits / cap).
        emitted_ids: [R] ids the student sampled, for `row_emitted_log_probs`.
        chunk_rows: rows at a time; by default as many as fit 256 MiB of logits. It changes memory, not values.

    Gradients come back in the dtypes of their tensors; the head's is summed over chunks in float32. A batch without
    live rows gives loss 0 and gradients 0, not None.

    Raises:
        InvalidConfigError: β, λ or Z out of range.
        InvalidDataError: hidden states and targets of different numbers of rows.
        TokenIdOutOfRangeError: a cell's id is not a row of the head.
        NonFiniteLogitsError: NaN or +inf logits, or target mass on a token whose logit is −inf; details say where.
    """
    if not normalizer > 0:
        raise InvalidConfigError(f"the normalizer must be positive, not {normalizer}", field="normalizer")
    check_shapes(len(hidden_RH), len(head_weight_VH), targets)
    divergence = Divergence(beta, skew)
    problem = LossProblem(targets, divergence, normalizer, logit_scale, softcap, emitted_ids, chunk_rows)
    with torch.autocast(hidden_RH.device.type, enabled=False):
        loss, *columns = _FusedLoss.apply(hidden_RH, head_weight_VH, head_bias, problem, torch.is_grad_enabled())
    facts = RowFacts(*columns)
    check_facts(facts, targets)
    emitted_log_probs = None if emitted_ids is None else facts.emitted_log_probs
    return LossOutput(loss, facts.divergence, facts.log_residual, facts.argmax_ids, emitted_log_probs)


class _FusedLoss(torch.autograd.Function):
    """Loss and row facts. Gradients are made in the forward pass; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden_RH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, problem: LossProblem, training: bool
    ) -> tuple[Tensor, ...]:
        head = LMHead(weight_VH, bias_V, problem.logit_scale, problem.softcap)
        hidden_needed, weight_needed, bias_needed = (training and needed for needed in ctx.needs_input_grad[:3])
        gradients = Gradients.zeros(hidden_RH, head, (hidden_needed, weight_needed, bias_needed))
        facts = run_chunks(problem, head, hidden_RH, gradients)
        weights_R = problem.targets.weights
        loss = torch.where(weights_R > 0, facts.divergence * weights_R, 0.0).sum() / problem.normalizer
        ctx.save_for_backward(
            gradients.hidden_RH,
            None if gradients.weight_VH is None else gradients.weight_VH.to(weight_VH.dtype),
            None if gradients.bias_V is None or bias_V is None else gradients.bias_V.to(bias_V.dtype),
        )
        ctx.mark_non_differentiable(*facts)
        return loss.to(arithmetic_dtype(hidden_RH.dtype)), *facts

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  (the decorator makes `ctx` positional)
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        loss_gradient = grad_outputs[0]
        # Unscaled gradients are handed over as they are: a copy would be as large as the head.
        unscaled = bool(loss_gradient == 1.0)
        scaled = (g if g is None or unscaled else g * loss_gradient.to(g.dtype) for g in ctx.saved_tensors)
        return *scaled, None, None


def check_shapes(num_rows: int, vocabulary_size: int, targets: TargetTensors) -> None:
    """Check what the student gives against its targets.

    Raises:
        InvalidDataError: another number of rows.
        TokenIdOutOfRangeError: a cell's id is outside the vocabulary.
    """
    if num_rows != targets.num_rows:
        raise InvalidDataError(f"{num_rows} rows of the student for {targets.num_rows} rows with a target")
    largest = int(targets.cell_ids.max()) if len(targets.cell_ids) else 0
    if largest >= vocabulary_size:
        raise TokenIdOutOfRangeError(
            f"a target names token {largest}, the head has {vocabulary_size} rows",
            token_id=largest,
            vocabulary_size=vocabulary_size,
        )


def check_facts(facts: RowFacts, targets: TargetTensors) -> None:
    """Raise `NonFiniteLogitsError`, naming the row, for NaN or +inf logits, or target mass that cannot be emitted."""
    is_nan_R = facts.divergence.isnan()
    bad_R = is_nan_R | (facts.unreachable & (targets.weights > 0))
    if not bool(bad_R.any()):
        return
    row = int(bad_R.nonzero()[0, 0])
    response, position = int(targets.response_index[row]), int(targets.row_index[row])
    reason = "logits hold NaN or +inf" if bool(is_nan_R[row]) else "logit is -inf where the target has mass"
    raise NonFiniteLogitsError(
        f"the student's {reason} (response {response}, position {position})", response=response, position=position
    )
