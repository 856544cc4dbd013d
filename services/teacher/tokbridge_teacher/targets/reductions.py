"""Reductions over long rows: sums as good as float64 without a float64 copy, and an exact top-k that is not a full
sort.

Knows tensors only. Both are deterministic.
"""

from __future__ import annotations

import torch

BLOCK = 256
TOP_BLOCK = 64
"""Of `top_columns`: heads are padded to a multiple of it."""


def block_sum(x_PC: torch.Tensor) -> torch.Tensor:
    """Row sums, float64 [P]: the input's precision within blocks of 256 columns, float64 across blocks."""
    whole = x_PC.shape[1] // BLOCK * BLOCK
    total = x_PC[:, whole:].sum(-1, dtype=torch.float64)
    if whole:
        total += x_PC[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1).sum(-1, dtype=torch.float64)
    return total


def top_columns(x_PC: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and column numbers of the k largest of each row, falling: both [P, min(k, C)].

    The k largest values lie in the k blocks of largest maximum, so only those are sorted.
    """
    num_columns = x_PC.shape[1]
    k = min(k, num_columns)
    if num_columns % TOP_BLOCK or k >= num_columns // TOP_BLOCK:
        return torch.topk(x_PC, k, dim=1)
    blocks = x_PC.unflatten(1, (-1, TOP_BLOCK))
    chosen = torch.topk(blocks.amax(-1), k, dim=1).indices
    values = blocks.gather(1, chosen[:, :, None].expand(-1, -1, TOP_BLOCK)).flatten(1)
    top, places = torch.topk(values, k, dim=1)
    columns = chosen.gather(1, places // TOP_BLOCK) * TOP_BLOCK + places % TOP_BLOCK
    return top, columns
