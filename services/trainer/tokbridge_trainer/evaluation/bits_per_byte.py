"""Bits per byte: the one scale on which models with different tokenizers can be compared."""

from __future__ import annotations

import math


def bits_per_byte(log_prob: float, num_bytes: int) -> float:
    """Code length of a content in bits, per byte of it.

    Args:
        log_prob: natural logarithm of the probability that a model gives the content's tokens, stop tokens left out.
        num_bytes: length of the content; above 0.
    """
    return -log_prob / math.log(2) / num_bytes


def gap_closed(before: float, after: float, floor: float) -> float:
    """Share of the way from `before` to `floor` that was gone: 1 at the floor, 0 where nothing changed."""
    return (before - after) / (before - floor)
