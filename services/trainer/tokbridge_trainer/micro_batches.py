"""Groups samples into micro-batches under a budget of tokens, padding included. Pure, no torch.

Sorted by length, so that little is padded; deterministic, so that a resumed run sums in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of the samples of each micro-batch.

    Args:
        lengths: tokens of each sample.
        max_tokens: samples × longest sample of a micro-batch stays within it, but for a single longer sample,
            which goes alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    longest = 0
    for index in order:
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches
