"""Forward and backward of one micro-batch: hidden states of the rows with a target, then the divergence of spec §7.

Axes: B rows of the model, L their tokens, H hidden size, R rows with a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedModel

from tokbridge_trainer.config_sections import LossConfig
from tokbridge_trainer.head import lm_head
from tokbridge_trainer.loss import LossOutput, bpm_loss
from tokbridge_trainer.packed_attention import hidden_states
from tokbridge_trainer.packing import TokenRows, emitted_ids, hidden_index, lay_out, sequence_ids
from tokbridge_trainer.samples import ScoredSample
from tokbridge_trainer.step_metrics import LearnedRows, teacher_shares
from tokbridge_trainer.student_module import Forward, StudentModule
from tokbridge_trainer.target_tensors import TargetTensors

_WHITESPACE_DRAWS = 1
"""Keeps these draws apart from the ones that wrote the sample, which follow from seed and key alone."""


class MicroBatchLoss:
    """The loss of a student on scored samples; gradients go into its parameters."""

    def __init__(self, student: StudentModule, forward: Forward, config: LossConfig, seed: int) -> None:
        self._student = student
        self._forward = forward
        self._config = config
        self._seed = seed
        self._device = lm_head(student.model).weight.device

    def rows(self, scored: Sequence[ScoredSample], *, beta: float, normalizer: float) -> LearnedRows:
        """Divergences of these samples' rows. Under gradients, that of (Σ divergence / normalizer) is added.

        No samples are samples like any: on several ranks the model must run all the same.

        Args:
            normalizer: Z of the whole batch, of all ranks.
        """
        samples = [s.sample for s in scored]
        targets = TargetTensors.from_rows(
            [s.rows for s in scored],
            whitespace=self._config.whitespace,
            generators=[np.random.default_rng([self._seed, *s.key, _WHITESPACE_DRAWS]) for s in samples],
            device=self._device,
        )
        tokens = lay_out([sequence_ids(s) for s in samples], packed=self._forward.packed, device=self._device)
        index_R = hidden_index(tokens, samples, targets.response_index, targets.row_index)
        emitted_R = emitted_ids(samples, targets.response_index, targets.row_index)
        output = partial(self._output, tokens, index_R, targets, emitted_R, beta=beta, normalizer=normalizer)
        loss, rows = self._student(output)
        if loss.requires_grad:
            loss.backward()
        return _learned_rows(scored, targets, rows, tokens.num_padding)

    def _output(
        self,
        tokens: TokenRows,
        index_R: torch.Tensor,
        targets: TargetTensors,
        emitted_R: torch.Tensor,
        model: PreTrainedModel,
        *,
        beta: float,
        normalizer: float,
    ) -> tuple[torch.Tensor, LossOutput]:
        head = lm_head(model)
        output = bpm_loss(
            hidden_states(model, tokens, self._forward.dtype)[index_R],
            head.weight,
            targets,
            normalizer=normalizer,
            beta=beta,
            skew=self._config.skew,
            head_bias=head.bias,
            logit_scale=self._forward.form.scale,
            softcap=self._forward.form.softcap,
            emitted_ids=emitted_R,
            chunk_rows=self._config.chunk_rows,
        )
        return output.loss, output


def _learned_rows(
    scored: Sequence[ScoredSample], targets: TargetTensors, output: LossOutput, num_padding: int
) -> LearnedRows:
    """Rows in the loss only, as numpy."""
    assert output.row_emitted_log_probs is not None
    in_loss_R = targets.weights > 0
    return LearnedRows(
        cases=targets.cases[in_loss_R].cpu().numpy(),
        divergence=output.row_divergence[in_loss_R].cpu().numpy(),
        target_log_prob=targets.emitted_log_probs[in_loss_R].cpu().numpy(),
        student_log_prob=output.row_emitted_log_probs[in_loss_R].cpu().numpy(),
        left_out=targets.left_out,
        num_padding=num_padding,
        shares=teacher_shares(
            scored,
            targets.response_index[in_loss_R].cpu().numpy(),
            targets.row_index[in_loss_R].cpu().numpy(),
        ),
    )
