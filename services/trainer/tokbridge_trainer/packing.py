"""Samples as the model reads them: side by side in one row, or a row each; and where the hidden state of a row stands.

The target row of response token i is predicted by the hidden state one token earlier: after the prompt for i = 0, after
the whole content for the stop row.

Axes: S sequences, B rows of the model, L tokens of a row, R rows with a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokbridge_trainer.samples import Sample


@dataclass(frozen=True)
class TokenRows:
    """Token sequences laid out for one forward pass."""

    input_ids_BL: Tensor
    """int64; prompt, then content. The stop token is predicted, never fed."""
    attention_mask_BL: Tensor
    """int64, 1 on tokens, 0 on padding."""
    position_ids_BL: Tensor
    """int64, from 0 in each sequence."""
    lengths_S: tuple[int, ...]
    """Tokens of each sequence."""
    starts_S: tuple[int, ...]
    """Where each begins in the flattened [B·L]."""
    packed: bool
    """Side by side in one row, without padding; else a row each, padded on the right."""

    @property
    def num_padding(self) -> int:
        """Tokens that are none."""
        return self.input_ids_BL.numel() - sum(self.lengths_S)


def lay_out(sequences: Sequence[NDArray[np.integer]], *, packed: bool, device: torch.device) -> TokenRows:
    """Lay sequences out. Without any, one token stands there that nothing refers to: a model cannot read nothing."""
    sequences = sequences or [np.zeros(1, np.int64)]
    lengths = [len(sequence) for sequence in sequences]
    shape = (1, sum(lengths)) if packed else (len(sequences), max(lengths))
    starts = [0, *np.cumsum(lengths[:-1]).tolist()] if packed else [b * shape[1] for b in range(shape[0])]
    ids, mask, positions = (np.zeros(shape[0] * shape[1], np.int64) for _ in range(3))
    for start, length, sequence in zip(starts, lengths, sequences, strict=True):
        place = slice(start, start + length)
        ids[place], mask[place], positions[place] = sequence, 1, np.arange(length)
    on_device = [torch.from_numpy(array.reshape(shape)).to(device) for array in (ids, mask, positions)]
    return TokenRows(on_device[0], on_device[1], on_device[2], tuple(lengths), tuple(starts), packed)


def hidden_index(tokens: TokenRows, samples: Sequence[Sample], response_index_R: Tensor, row_index_R: Tensor) -> Tensor:
    """[R] int64, where in the flattened [B·L] the state stands that predicts each response token.

    Args:
        tokens: of these samples, in this order.
        response_index_R: which sample.
        row_index_R: which of its response tokens.
    """
    before_response = [start + len(s.prompt.token_ids) - 1 for start, s in zip(tokens.starts_S, samples, strict=False)]
    return torch.tensor(before_response, dtype=torch.int64, device=row_index_R.device)[response_index_R] + row_index_R


def emitted_ids(samples: Sequence[Sample], response_index_R: Tensor, row_index_R: Tensor) -> Tensor:
    """[R] int64, the token the student wrote there, the stop token in a stop row."""
    responses = [response_ids(sample) for sample in samples]
    starts = np.cumsum([0, *(len(ids) for ids in responses)])
    device = row_index_R.device
    ids = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *responses])).to(device)
    return ids[torch.from_numpy(starts).to(device)[response_index_R] + row_index_R]


def sequence_ids(sample: Sample) -> NDArray[np.int64]:
    """What the model is fed: prompt and content."""
    return np.concatenate([sample.prompt.token_ids, sample.token_ids]).astype(np.int64)


def response_ids(sample: Sample) -> NDArray[np.int64]:
    """Content ids and the stop token, if any: one a row."""
    stop = [] if sample.stop_id is None else [sample.stop_id]
    return np.concatenate([sample.token_ids.astype(np.int64), np.array(stop, np.int64)])
