"""Forward and backward of one micro-batch: hidden states of the rows with a target, then the divergence of spec §7.

Axes: B samples, L tokens with padding, H hidden size, R rows with a target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from tokbridge_trainer.config_sections import LossConfig
from tokbridge_trainer.head import decoder_of, find_head_form, lm_head
from tokbridge_trainer.loss import LossOutput, bpm_loss
from tokbridge_trainer.packing import PackedSamples, pack_samples
from tokbridge_trainer.samples import ScoredSample
from tokbridge_trainer.step_metrics import LearnedRows
from tokbridge_trainer.target_tensors import TargetTensors


class MicroBatchLoss:
    """The loss of a student on scored samples; gradients go into its parameters."""

    def __init__(self, model: PreTrainedModel, config: LossConfig, dtype: torch.dtype) -> None:
        self._decoder = decoder_of(model)
        self._head = lm_head(model)
        self._form = find_head_form(model)
        self._config = config
        self._dtype = dtype

    def rows(
        self, scored: Sequence[ScoredSample], *, beta: float, normalizer: float, generator: np.random.Generator
    ) -> LearnedRows:
        """Divergences of these samples' rows. Under gradients, that of (Σ divergence / normalizer) is added.

        Args:
            normalizer: Z of the whole batch.
            generator: draws the rows that `whitespace: random` leaves out.
        """
        targets = TargetTensors.from_rows(
            [s.rows for s in scored],
            whitespace=self._config.whitespace,
            generator=generator,
            device=self._head.weight.device,
        )
        packed = pack_samples([s.sample for s in scored], targets)
        output = bpm_loss(
            self._hidden_states(packed),
            self._head.weight,
            targets,
            normalizer=normalizer,
            beta=beta,
            skew=self._config.skew,
            head_bias=self._head.bias,
            logit_scale=self._form.scale,
            softcap=self._form.softcap,
            emitted_ids=packed.emitted_ids_R,
            chunk_rows=self._config.chunk_rows,
        )
        if output.loss.requires_grad:
            output.loss.backward()
        return _learned_rows(targets, output)

    def _hidden_states(self, packed: PackedSamples) -> torch.Tensor:
        """[R, H] last hidden states that predict the rows' tokens."""
        device_type = packed.input_ids_BL.device.type
        with torch.autocast(device_type, dtype=self._dtype, enabled=self._dtype != torch.float32):
            output = self._decoder(
                input_ids=packed.input_ids_BL, attention_mask=packed.attention_mask_BL, use_cache=False
            )
        return output.last_hidden_state.flatten(0, 1)[packed.hidden_index_R]


def _learned_rows(targets: TargetTensors, output: LossOutput) -> LearnedRows:
    """Rows in the loss only, as numpy."""
    assert output.row_emitted_log_probs is not None
    in_loss_R = targets.weights > 0
    return LearnedRows(
        cases=targets.cases[in_loss_R].cpu().numpy(),
        divergence=output.row_divergence[in_loss_R].cpu().numpy(),
        target_log_prob=targets.emitted_log_probs[in_loss_R].cpu().numpy(),
        student_log_prob=output.row_emitted_log_probs[in_loss_R].cpu().numpy(),
        left_out=targets.left_out,
    )
