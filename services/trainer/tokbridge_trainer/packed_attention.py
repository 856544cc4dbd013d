"""Keeps sequences apart that lie side by side in one row of the model.

Three ways, all through transformers' public interfaces. FlashAttention takes the sequences' bounds (`cu_seq_lens_q`
and its like), as do the kernels of linear attention where they are installed. With `eager` and `flex_attention`
transformers sees from the positions where a sequence begins, and masks the others. With `sdpa`, the default everywhere,
that mask would cost the fast kernels and the square of the row: here each sequence goes through the implementation by
itself, at the cost of the sequences alone.

Whether a model keeps them apart is not read off its class but tried (`keeps_sequences_apart`).

Axes: as in `packing`; H hidden size.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from tokbridge_trainer.head import decoder_of, lm_head
from tokbridge_trainer.packing import TokenRows, lay_out

_PER_SEQUENCE = "tokbridge_sdpa_per_sequence"
_PROBE_LENGTHS = (5, 8, 3)
_LINEAR_ATTENTION_KERNELS = ("fla", "causal_conv1d")
"""Packages."""


def allow_packing(model: PreTrainedModel) -> None:
    """Prepare a model, before its first forward pass, for rows of several sequences."""
    if _implementation(model) == "sdpa":
        AttentionInterface.register(_PER_SEQUENCE, sdpa_per_sequence)
        AttentionMaskInterface.register(_PER_SEQUENCE, AttentionMaskInterface()["sdpa"])
        model.set_attn_implementation(_PER_SEQUENCE)


def hidden_states(model: PreTrainedModel, tokens: TokenRows, dtype: torch.dtype) -> Tensor:
    """[B·L, H] last hidden states, computed in `dtype`."""
    with torch.autocast(tokens.input_ids_BL.device.type, dtype=dtype, enabled=dtype != torch.float32):
        arguments = _packed_arguments(model, tokens) if tokens.packed else {"attention_mask": tokens.attention_mask_BL}
        output = decoder_of(model)(
            input_ids=tokens.input_ids_BL, position_ids=tokens.position_ids_BL, use_cache=False, **arguments
        )
    return output.last_hidden_state.flatten(0, 1)


def keeps_sequences_apart(model: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Whether sequences in one row have the hidden states they have alone, up to rounding. Tried on three."""
    if _has_linear_attention(model) and not all(map(find_spec, _LINEAR_ATTENTION_KERNELS)):
        # transformers refuses to run its own implementation on packed sequences.
        return False
    weight = lm_head(model).weight
    ids = np.linspace(0, weight.shape[0] - 1, sum(_PROBE_LENGTHS)).astype(np.int64)
    sequences = np.split(ids, np.cumsum(_PROBE_LENGTHS)[:-1])
    was_training = model.training
    model.eval()
    with torch.no_grad():
        side_by_side, alone = (
            _states_of_sequences(model, lay_out(sequences, packed=packed, device=weight.device), dtype)
            for packed in (True, False)
        )
    model.train(was_training)
    tolerance = 1e-4 if alone.dtype == torch.float32 else 3e-2
    return bool((side_by_side - alone).abs().max() <= tolerance * alone.abs().max())


def sdpa_per_sequence(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sequence_lengths: tuple[int, ...] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' `sdpa`, one sequence of the row at a time: [1, L, heads, size]. Without lengths, just `sdpa`."""
    sdpa = AttentionInterface()["sdpa"]
    if sequence_lengths is None:
        return sdpa(module, query, key, value, attention_mask, **kwargs)
    outputs, start = [], 0
    for length in sequence_lengths:
        span = slice(start, start + length)
        # Causal masks, sliding windows included, depend on distances only: a cut along the diagonal is the sequence's.
        mask = None if attention_mask is None else attention_mask[:, :, span, span]
        outputs.append(sdpa(module, query[:, :, span], key[:, :, span], value[:, :, span], mask, **kwargs)[0])
        start += length
    return torch.cat(outputs, dim=1), None


def _packed_arguments(model: PreTrainedModel, tokens: TokenRows) -> dict[str, Any]:
    bounds = np.cumsum([0, *tokens.lengths_S])
    on_device = torch.from_numpy(bounds.astype(np.int32)).to(tokens.input_ids_BL.device)
    arguments = {
        "cu_seq_lens_q": on_device,
        "cu_seq_lens_k": on_device,
        "max_length_q": max(tokens.lengths_S),
        "max_length_k": max(tokens.lengths_S),
        # Without a mask of ours, transformers looks for bounds in the positions.
        "attention_mask": None,
    }
    if _has_linear_attention(model):
        numbers = np.repeat(np.arange(len(tokens.lengths_S), dtype=np.int32), tokens.lengths_S)
        arguments["seq_idx"] = torch.from_numpy(numbers)[None].to(tokens.input_ids_BL.device)
    if _implementation(model) == _PER_SEQUENCE:
        arguments |= {"attention_mask": tokens.attention_mask_BL, "sequence_lengths": tokens.lengths_S}
    return arguments


def _states_of_sequences(model: PreTrainedModel, tokens: TokenRows, dtype: torch.dtype) -> Tensor:
    states = hidden_states(model, tokens, dtype)
    spans = zip(tokens.starts_S, tokens.lengths_S, strict=True)
    return torch.cat([states[start : start + length] for start, length in spans])


def _has_linear_attention(model: PreTrainedModel) -> bool:
    return "linear_attention" in (getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ())


def _implementation(model: PreTrainedModel) -> str | None:
    return model.config.get_text_config(decoder=True)._attn_implementation
