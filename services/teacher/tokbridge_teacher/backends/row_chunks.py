"""Hidden states of several responses, cut into chunks of rows that one call of the LM head takes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class HiddenPiece:
    """Hidden states of one response's consecutive positions."""

    member: int
    first_position: int
    hidden_Ph: torch.Tensor


def chunks_of_rows(parts: Sequence[HiddenPiece], chunk_rows: int) -> list[list[HiddenPiece]]:
    """Cut parts into chunks of at most `chunk_rows` rows, each part's rows in order."""
    chunks: list[list[HiddenPiece]] = [[]]
    room = chunk_rows
    for part in parts:
        start = 0
        total = part.hidden_Ph.shape[0]
        while start < total:
            if room == 0:
                chunks.append([])
                room = chunk_rows
            rows = min(room, total - start)
            hidden_Ph = part.hidden_Ph[start : start + rows]
            chunks[-1].append(HiddenPiece(part.member, part.first_position + start, hidden_Ph))
            start += rows
            room -= rows
    return [chunk for chunk in chunks if chunk]
