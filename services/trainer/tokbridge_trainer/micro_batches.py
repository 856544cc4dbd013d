"""Shares the samples of a step out among ranks, and groups them into micro-batches. Pure, no torch.

Deterministic, so that a resumed run sums in the same order and every rank knows the plan of all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def rank_micro_batches(
    lengths: Sequence[int], max_tokens: int, *, rank: int = 0, ranks: int = 1, packed: bool
) -> list[list[int]]:
    """The micro-batches of one rank, as indices of samples.

    Every rank gets as many as the one with the most: the last ones may be empty. Gradients are summed over ranks with
    each micro-batch, so a rank that stopped earlier would be waited for without end.

    Args:
        lengths: tokens of each sample of the step.
        max_tokens: what a micro-batch may hold, but for a single longer sample, which goes alone.
        packed: sequences lie side by side, else each has a row of its own, padded to the longest.
    """
    plans = [
        [[share[i] for i in indices] for indices in _plan([lengths[i] for i in share], max_tokens, packed)]
        for share in balanced_shares(lengths, ranks)
    ]
    most = max(len(plan) for plan in plans)
    return plans[rank] + [[] for _ in range(most - len(plans[rank]))]


def balanced_shares(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of each rank's samples: the longest first, each to the rank with the fewest tokens so far.

    No rank exceeds 4/3 of the best possible maximum (Graham 1969).
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for index in _longest_first(lengths):
        tokens, rank = heapq.heappop(loads)
        shares[rank].append(index)
        heapq.heappush(loads, (tokens + lengths[index], rank))
    return [sorted(share) for share in shares]


def pack_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices by micro-batch, first fit decreasing: the sum of the lengths stays within `max_tokens`."""
    batches: list[list[int]] = []
    room: list[int] = []
    for index in _longest_first(lengths):
        fitting = next((b for b, free in enumerate(room) if lengths[index] <= free), None)
        if fitting is None:
            batches.append([index])
            room.append(max_tokens - lengths[index])
        else:
            batches[fitting].append(index)
            room[fitting] -= lengths[index]
    return batches


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices by micro-batch, by length so that little is padded: samples × longest stays within `max_tokens`."""
    batches: list[list[int]] = []
    longest = 0
    for index in _longest_first(lengths):
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = lengths[index]
    return batches


def _plan(lengths: Sequence[int], max_tokens: int, packed: bool) -> list[list[int]]:
    return pack_micro_batches(lengths, max_tokens) if packed else plan_micro_batches(lengths, max_tokens)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
