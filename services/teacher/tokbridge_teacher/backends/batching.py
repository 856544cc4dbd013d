"""Which responses run in one forward pass: groups that share a prompt, then batches under a token budget.

Pure index arithmetic over token ids. Everything is causal, so a batch may be padded on the right without a mask: what a
real token attends to never includes a pad.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32 | np.int64]

MAX_PADDED_SHARE = 0.15
"""A batch that is large enough takes no longer response if more than this share of its tokens would then be padding."""
ENOUGH_TOKENS = 256
"""From so many tokens on, a second pass costs less than much padding in the first."""


@dataclass(frozen=True)
class MicroBatch:
    """Sequences that run together after a common prefix."""

    members: tuple[int, ...]
    """Indices of the responses."""
    suffixes: tuple[Ids, ...]
    """What follows the prefix: rest of the prompt, then the content."""
    first_columns: tuple[int, ...]
    """Column of each suffix whose hidden state predicts the first content token."""

    @property
    def width(self) -> int:
        """Tokens of the longest suffix."""
        return max(len(suffix) for suffix in self.suffixes)

    def padded(self) -> NDArray[np.int64]:
        """[B, width], padded on the right with each response's own last id: should the model give NaN for some id,
        nobody but the responses that hold it is touched.
        """
        table = np.zeros((len(self.suffixes), self.width), dtype=np.int64)
        for row, suffix in enumerate(self.suffixes):
            table[row, : len(suffix)] = suffix
            table[row, len(suffix) :] = suffix[-1]
        return table


@dataclass(frozen=True)
class PrefixGroup:
    """Batches that start from the same prefix, which is computed once; it may be empty."""

    prefix_ids: Ids
    batches: tuple[MicroBatch, ...]


def group_responses(
    prompts: Sequence[Ids], contents: Sequence[Ids], *, batch_tokens: int, share_prompts: bool, batch: bool
) -> Iterator[PrefixGroup]:
    """Split responses into prefix groups, each with batches of at most `batch_tokens` padded tokens, few of them pads.

    A prompt of several responses becomes a prefix without its last token, whose hidden state every response needs.
    Responses whose prompt is theirs alone are batched with one another after an empty prefix. A batch holds at least
    one response, however long.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for index, prompt in enumerate(prompts):
        key = prompt.tobytes() if share_prompts else str(index).encode()
        by_prompt.setdefault(key, []).append(index)
    alone = [members[0] for members in by_prompt.values() if len(members) == 1]
    for members in by_prompt.values():
        if len(members) > 1:
            prefix_length = len(prompts[members[0]]) - 1
            yield _prefix_group(members, prompts, contents, prefix_length, batch_tokens if batch else 0)
    if alone:
        yield _prefix_group(alone, prompts, contents, 0, batch_tokens if batch else 0)


def _prefix_group(
    members: list[int], prompts: Sequence[Ids], contents: Sequence[Ids], prefix_length: int, batch_tokens: int
) -> PrefixGroup:
    suffixes = {index: np.concatenate([prompts[index][prefix_length:], contents[index]]) for index in members}
    batches = _split_by_length({index: len(suffixes[index]) for index in members}, prefix_length, batch_tokens)
    return PrefixGroup(
        prefix_ids=prompts[members[0]][:prefix_length],
        batches=tuple(
            MicroBatch(
                members=tuple(batch),
                suffixes=tuple(suffixes[index] for index in batch),
                first_columns=tuple(len(prompts[index]) - prefix_length - 1 for index in batch),
            )
            for batch in batches
        ),
    )


def _split_by_length(lengths: dict[int, int], prefix_length: int, batch_tokens: int) -> list[list[int]]:
    """Responses from the shortest on; a new batch where the budget ends, or where padding begins to cost a pass."""
    batches: list[list[int]] = []
    tokens = 0
    for index in sorted(lengths, key=lengths.__getitem__):
        rows = len(batches[-1]) + 1 if batches else 1
        held = rows * (prefix_length + lengths[index])
        padding = rows * lengths[index] - tokens - lengths[index]
        too_padded = tokens >= ENOUGH_TOKENS and padding > MAX_PADDED_SHARE * rows * lengths[index]
        if not batches or held > batch_tokens or too_padded:
            batches.append([])
            tokens = 0
        batches[-1].append(index)
        tokens += lengths[index]
    return batches
