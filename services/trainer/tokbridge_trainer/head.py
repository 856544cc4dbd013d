"""The student's LM head: how logits follow from the last hidden states.

Models differ in what stands between `lm_head(hidden)` and their logits: nothing, a constant factor (Granite, Cohere),
a soft cap (Gemma). The form is not read off class names but checked on the model itself, and refused if none fits.

Axes: R rows, H hidden size, V rows of the head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from tokbridge.errors import InvalidConfigError, SelfTestFailedError

_PROBE_TOKENS = 8
_ROUNDING = 1e-3
"""A measured factor this near to 1 is 1."""


@dataclass(frozen=True)
class HeadForm:
    """logits = softcap · tanh(scale · (W h + b) / softcap), without the cap where it is None."""

    scale: float
    softcap: float | None


def lm_head(model: PreTrainedModel) -> torch.nn.Linear:
    """The head itself.

    Raises:
        InvalidConfigError: the model has none, or an adapter is wrapped around it.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise InvalidConfigError(f"the LM head of {type(model).__name__} is not a plain linear layer", field="student")
    return head


def decoder_of(model: PreTrainedModel) -> torch.nn.Module:
    """The model up to its last hidden states."""
    return model.get_decoder()


def find_head_form(model: PreTrainedModel) -> HeadForm:
    """Compare the head's output with the model's own logits on a few tokens.

    Raises:
        SelfTestFailedError: the logits are no known function of the hidden states and the head.
    """
    softcap = getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    bare, logits = _probe(model)
    scale = float((bare * logits).sum() / (bare * bare).sum())
    # No known model has both a factor and a cap; one that had would fail the check below.
    form = HeadForm(1.0 if softcap or abs(scale - 1.0) < _ROUNDING else scale, softcap)
    error = (apply_form(bare, form) - logits).abs().max() / logits.abs().max().clamp_min(1e-6)
    tolerance = 1e-3 if model.dtype == torch.float32 else 2e-2
    if not float(error) < tolerance:
        raise SelfTestFailedError(
            f"logits of {type(model).__name__} do not follow from its hidden states and LM head (off by "
            f"{float(error):.2g}); this model cannot be trained"
        )
    return form


def apply_form(bare: torch.Tensor, form: HeadForm) -> torch.Tensor:
    """Logits from W h + b, any shape."""
    scaled = bare * form.scale
    return scaled if form.softcap is None else form.softcap * torch.tanh(scaled / form.softcap)


def _probe(model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """[1, T, V] each, float64: the head's output, and the model's own logits."""
    head = lm_head(model)
    ids = torch.linspace(0, head.weight.shape[0] - 1, _PROBE_TOKENS, device=head.weight.device).long()[None]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        hidden = decoder_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        bare = head(hidden)
        logits = model(input_ids=ids, use_cache=False).logits
    model.train(was_training)
    return bare.double(), logits.double()
