"""Micro-batches as tensors: padded ids, and where the hidden state of each row stands.

The row of response token i is predicted by the hidden state one token earlier: after the prompt for i = 0, after the
whole content for the stop row.

Axes: B samples, L tokens with padding, R rows with a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tokbridge_trainer.samples import Sample
from tokbridge_trainer.target_tensors import TargetTensors


@dataclass(frozen=True)
class PackedSamples:
    """Samples padded on the right."""

    input_ids_BL: torch.Tensor
    """int64; prompt, then content. The stop token is predicted, never fed."""
    attention_mask_BL: torch.Tensor
    """int64, 1 on tokens."""
    hidden_index_R: torch.Tensor
    """int64, index of each row's hidden state in the flattened [B·L]."""
    emitted_ids_R: torch.Tensor
    """int64, the token the student wrote there, the stop token in a stop row."""


def pack_samples(samples: Sequence[Sample], targets: TargetTensors) -> PackedSamples:
    """Pad samples and find their rows; all tensors on the device of the targets.

    Args:
        targets: of these samples, in this order.
    """
    longest = max(sample.num_tokens for sample in samples)
    input_ids_BL = np.zeros((len(samples), longest), np.int64)
    attention_mask_BL = np.zeros_like(input_ids_BL)
    response_ids_BT = np.zeros((len(samples), longest), np.int64)
    for b, sample in enumerate(samples):
        input_ids_BL[b, : sample.num_tokens] = np.concatenate([sample.prompt.token_ids, sample.token_ids])
        attention_mask_BL[b, : sample.num_tokens] = 1
        response_ids_BT[b, : sample.num_response_tokens] = response_ids(sample)
    before_response_B = np.array([len(sample.prompt.token_ids) - 1 for sample in samples])
    device = targets.row_index.device
    on_device = [torch.from_numpy(a).to(device) for a in (input_ids_BL, attention_mask_BL, response_ids_BT)]
    first_B = (torch.from_numpy(before_response_B) + longest * torch.arange(len(samples))).to(device)
    return PackedSamples(
        input_ids_BL=on_device[0],
        attention_mask_BL=on_device[1],
        hidden_index_R=first_B[targets.response_index] + targets.row_index,
        emitted_ids_R=on_device[2][targets.response_index, targets.row_index],
    )


def response_ids(sample: Sample) -> NDArray[np.int64]:
    """Content ids and the stop token, if any: one a row."""
    stop = [] if sample.stop_id is None else [sample.stop_id]
    return np.concatenate([sample.token_ids.astype(np.int64), np.array(stop, np.int64)])
