"""What comes next after a student token, as a byte: a question that any two tokenizers can be asked.

A distribution over tokens is grouped by the first byte of each; the turn's end is one more symbol. For a teacher's
target row this grouping is exact, whatever the routing: routing shortens a token, but never changes its first byte.

Axes: R rows, V student tokens, S symbols.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray

from tokbridge.targets import RowCase, TargetRows
from tokbridge.vocabulary import ByteVocabulary

END_OF_TURN = 256
_NOTHING = 257
_NUM_SYMBOLS = 258


def next_symbols(vocabulary: ByteVocabulary, stop_ids: Collection[int]) -> NDArray[np.int64]:
    """[V], first byte of each token, 256 for a stop token, 257 for the other control tokens."""
    symbols_V = np.array([token[0] if token else _NOTHING for token in vocabulary.token_bytes], np.int64)
    symbols_V[list(stop_ids)] = END_OF_TURN
    return symbols_V


def teacher_top_symbols(rows: TargetRows, symbols_V: NDArray[np.int64]) -> NDArray[np.int64]:
    """[R], likeliest next symbol by the target, −1 for rows that have none and for stop rows.

    A stop row says how likely the end is, but not what comes next if it isn't the end.
    """
    masses_RS = np.zeros((rows.num_rows, _NUM_SYMBOLS))
    row_of_cell = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_offsets))
    np.add.at(masses_RS, (row_of_cell, symbols_V[rows.cell_ids]), np.exp(rows.cell_log_probs.astype(np.float64)))
    comparable = rows.has_target() & (rows.cases != RowCase.STOP)
    return np.where(comparable, masses_RS[:, :_NOTHING].argmax(1), -1)


def student_top_symbols(log_probs_RV: torch.Tensor, symbols_V: torch.Tensor) -> torch.Tensor:
    """[R] int64, likeliest next symbol by the student's full distribution."""
    masses_RS = log_probs_RV.new_zeros((len(log_probs_RV), _NUM_SYMBOLS))
    masses_RS.index_add_(1, symbols_V, log_probs_RV.exp())
    return masses_RS[:, :_NOTHING].argmax(1)
