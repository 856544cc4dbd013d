"""The divergence of one row and its gradient, over a partition of the student's vocabulary (spec §7).

A row's partition is its explicit cells and the complement ∅. The student's distribution on it is the softmax of coarse
logits: the logit of each cell, and for ∅ the logsumexp of all other logits. Everything here is per row, small, pure and
in float64; the module knows neither vocabularies nor LM heads.

Axes: R rows, P parts of the partition (padded; a part that does not exist has −inf on both sides).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tokbridge.errors import InvalidConfigError


@dataclass(frozen=True)
class Divergence:
    """Which divergence a content row takes: β, and the skew λ of β = 1.

    0 < β < 1: β·KL(t‖m) + (1−β)·KL(p̃‖m) with m = β·t + (1−β)·p̃; β = 0: KL(t‖p̃);
    β = 1: KL(p̃‖(1−λ)·t + λ·p̃). Stop rows take KL(b‖p̄) whatever β.

    Raises:
        InvalidConfigError: β outside [0, 1], or λ outside (0, 1).
    """

    beta: float = 0.5
    skew: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise InvalidConfigError(f"beta must lie in [0, 1], not {self.beta}", field="beta")
        if not 0.0 < self.skew < 1.0:
            raise InvalidConfigError(f"skew must lie in (0, 1), not {self.skew}", field="skew")

    def __call__(self, log_target_RP: Tensor, logits_RP: Tensor, is_stop_R: Tensor) -> tuple[Tensor, Tensor]:
        """Divergence of every row [R], nats, and its gradient in the coarse logits [R, P].

        A part with logit −inf adds nothing to the student's terms. Target mass on it makes β = 0 infinite; the caller
        has to refuse such rows (`unreachable_rows`), whatever β.
        """
        log_student_RP, top_R1 = coarse_log_probs(logits_RP)
        if self.beta == 0.0:
            return _forward_kl(log_target_RP, log_student_RP)
        if self.beta == 1.0:
            value_R, gradient_RP = _skewed_reverse_kl(log_target_RP, log_student_RP, top_R1, self.skew)
        else:
            value_R, gradient_RP = _jensen_shannon(log_target_RP, log_student_RP, top_R1, self.beta)
        stop_value_R, stop_gradient_RP = _forward_kl(log_target_RP, log_student_RP)
        value_R = torch.where(is_stop_R, stop_value_R, value_R)
        return value_R, torch.where(is_stop_R[:, None], stop_gradient_RP, gradient_RP)


def coarse_log_probs(logits_RP: Tensor) -> tuple[Tensor, Tensor]:
    """log softmax of the coarse logits, and the index of each row's largest [R, 1].

    The largest part's log-probability is −log1p(Σ of the others), so that it keeps its relative precision when p → 1.
    """
    top_R1 = logits_RP.argmax(dim=1, keepdim=True)
    margins_RP = logits_RP - logits_RP.gather(1, top_R1)
    others_RP = margins_RP.exp().scatter(1, top_R1, 0.0)
    return margins_RP - others_RP.sum(1, keepdim=True).log1p(), top_R1


def unreachable_rows(log_target_RP: Tensor, logits_RP: Tensor) -> Tensor:
    """[R] bool: the target has mass on a part that the student cannot emit (logit −inf)."""
    return ((log_target_RP > -math.inf) & (logits_RP == -math.inf)).any(dim=1)


def _forward_kl(log_target_RP: Tensor, log_student_RP: Tensor) -> tuple[Tensor, Tensor]:
    """KL(t‖p̃); gradient p̃·Σt − t, written as p̃·(Σt − t) + t·(p̃ − 1) so that it is exact when p̃ → t → 1."""
    target_RP = log_target_RP.exp()
    terms_RP = torch.where(target_RP > 0, target_RP * (log_target_RP - log_student_RP), 0.0)
    elsewhere_RP = target_RP.sum(1, keepdim=True) - target_RP
    return terms_RP.sum(1), log_student_RP.exp() * elsewhere_RP + target_RP * log_student_RP.expm1()


def _jensen_shannon(
    log_target_RP: Tensor, log_student_RP: Tensor, top_R1: Tensor, beta: float
) -> tuple[Tensor, Tensor]:
    """Generalized JSD; its gradient is (1−β)·p̃·(d − Σ p̃·d) with d = log p̃ − log m (the terms in ∂m cancel)."""
    log_mixture_RP = torch.logaddexp(log_target_RP + math.log(beta), log_student_RP + math.log1p(-beta))
    target_RP, student_RP = log_target_RP.exp(), log_student_RP.exp()
    surplus_RP = _log_ratio(log_student_RP, log_mixture_RP)
    deficit_RP = _log_ratio(log_target_RP, log_mixture_RP)
    value_R = (beta * target_RP * deficit_RP + (1.0 - beta) * student_RP * surplus_RP).sum(1)
    return value_R, (1.0 - beta) * _centred(student_RP, surplus_RP, top_R1)


def _skewed_reverse_kl(
    log_target_RP: Tensor, log_student_RP: Tensor, top_R1: Tensor, skew: float
) -> tuple[Tensor, Tensor]:
    """KL(p̃‖m), m = (1−λ)·t + λ·p̃; its gradient is p̃·(e − Σ p̃·e) with e = d + (1−λ)·t/m, d = log p̃ − log m."""
    log_share_RP = log_target_RP + math.log1p(-skew)
    log_mixture_RP = torch.logaddexp(log_share_RP, log_student_RP + math.log(skew))
    student_RP = log_student_RP.exp()
    surplus_RP = _log_ratio(log_student_RP, log_mixture_RP)
    target_share_RP = torch.where(log_share_RP > -math.inf, log_share_RP - log_mixture_RP, -math.inf).exp()
    return (student_RP * surplus_RP).sum(1), _centred(student_RP, surplus_RP + target_share_RP, top_R1)


def _log_ratio(log_a_RP: Tensor, log_b_RP: Tensor) -> Tensor:
    """log a − log b, 0 where a is 0: those parts carry no weight."""
    return torch.where(log_a_RP > -math.inf, log_a_RP - log_b_RP, 0.0)


def _centred(student_RP: Tensor, score_RP: Tensor, top_R1: Tensor) -> Tensor:
    """p̃·(s − Σ p̃·s). Scores are taken relative to the largest part's, which keeps small gradients exact at p̃ → 1."""
    relative_RP = score_RP - score_RP.gather(1, top_R1)
    return student_RP * (relative_RP - (student_RP * relative_RP).sum(1, keepdim=True))
