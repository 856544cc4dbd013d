"""The LM head by chunks of rows: hidden states in, float32 logits out, never more rows at once than asked for.

Products of bfloat16 numbers are exact in float32, so a bfloat16 head gives float32-accurate logits as long as sums are
kept in float32; the model's own bfloat16 output would round them to three digits. Knows nothing of targets.
"""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel

from tokbridge.errors import InvalidConfigError

_VOCABULARY_BLOCK = 8192
_MULTIPLIERS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_DIVISORS = ("logits_scaling",)


class LmHead:
    """Logits of a causal model from its last hidden states.

    Axes: P rows, h hidden size, V rows of the head.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        weight = getattr(head, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
            raise InvalidConfigError("The model's LM head is not a plain matrix; load it unquantised.", field="model")
        config = model.config.get_text_config()
        self._weight_Vh = weight.detach()
        bias = getattr(head, "bias", None)
        self._bias_V = bias.detach().float() if isinstance(bias, torch.Tensor) else None
        self._scale = _logit_scale(config)
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._buffer = torch.empty(0)

    @property
    def size(self) -> int:
        """V, padding included."""
        return self._weight_Vh.shape[0]

    def __call__(self, hidden_Ph: torch.Tensor) -> torch.Tensor:
        """Float32 logits [P, V], scaled and soft-capped as the model does.

        The result lives in a buffer that the next call overwrites, and the caller may overwrite it too.
        """
        logits_PV = self._output(hidden_Ph.shape[0])
        self._multiply(hidden_Ph, logits_PV)
        if self._bias_V is not None:
            logits_PV += self._bias_V
        if self._scale != 1.0:
            logits_PV *= self._scale
        if self._softcap is not None:
            logits_PV.div_(self._softcap).tanh_().mul_(self._softcap)
        return logits_PV

    def _output(self, rows: int) -> torch.Tensor:
        if self._buffer.shape[0] < rows:
            self._buffer = torch.empty((rows, self.size), dtype=torch.float32, device=self._weight_Vh.device)
        return self._buffer[:rows]

    def _multiply(self, hidden_Ph: torch.Tensor, out_PV: torch.Tensor) -> None:
        weight_Vh = self._weight_Vh
        if weight_Vh.dtype == torch.float32:
            torch.mm(hidden_Ph.float(), weight_Vh.T, out=out_PV)
        elif weight_Vh.is_cuda:
            torch.mm(hidden_Ph.to(weight_Vh.dtype), weight_Vh.T, out_dtype=torch.float32, out=out_PV)
        else:
            hidden_Ph = hidden_Ph.float()
            for start in range(0, self.size, _VOCABULARY_BLOCK):
                block = slice(start, start + _VOCABULARY_BLOCK)
                torch.mm(hidden_Ph, weight_Vh[block].float().T, out=out_PV[:, block])


def _logit_scale(config: PretrainedConfig) -> float:
    scale = 1.0
    for name in _MULTIPLIERS:
        scale *= getattr(config, name, None) or 1.0
    for name in _DIVISORS:
        scale /= getattr(config, name, None) or 1.0
    return scale
