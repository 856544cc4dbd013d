"""Which positions chunks cover, and how the chunks of two passes make one answer. Pure.

A hit in the prefix cache leaves out the rows it reaches into. They are computed by a second pass over the tokens up to
the last of them, without the cache: together no more tokens than one pass without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokbridge_teacher.targets.marginal import ChunkResult


def missing_stop(spans: Iterable[tuple[int, int]], num_positions: int) -> int:
    """One past the last position of `0 … num_positions − 1` that no span holds; 0 if there is none.

    Args:
        spans: start and stop of each, ascending, none over another.
    """
    covered, missing = 0, 0
    for start, stop in spans:
        if start > covered:
            missing = start
        covered = stop
    return num_positions if covered < num_positions else missing


def joined(first: Sequence[ChunkResult], second: Sequence[ChunkResult], second_stop: int) -> list[ChunkResult]:
    """`second`, which holds positions up to `second_stop`, then what `first` holds from there on."""
    return [*second, *(chunk for chunk in first if chunk.start >= second_stop)]


def spans_of(chunks: Iterable[ChunkResult]) -> list[tuple[int, int]]:
    """Start and stop of each chunk."""
    return [(chunk.start, chunk.stop) for chunk in chunks]
