"""Forward passes of the headless model: hidden states of chosen columns, long sequences piece by piece through a cache.

Knows token ids and hidden states only; the LM head and the targets come after it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Generator, Iterator
from typing import cast

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from tokbridge_teacher.backends.batching import Ids, MicroBatch
from tokbridge_teacher.backends.row_chunks import HiddenPiece


class HiddenStates:
    """Runs a model without its head.

    Args:
        model: a causal model; only its decoder is used.
        piece_tokens: tokens of one forward pass, padding included; None runs every sequence whole and without a cache.
    """

    def __init__(self, model: PreTrainedModel, piece_tokens: int | None) -> None:
        self._decoder = model.get_decoder()
        self._config = model.config
        self._device = model.device
        # transformers renamed the argument in 5.2x.
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self.piece_tokens = piece_tokens

    def prefix(self, prefix_ids: Ids, wanted: Callable[[], bool]) -> Generator[None, None, DynamicCache | None]:
        """Compute a prefix piece by piece and return its cache: None for an empty one, or once nobody wants it."""
        if len(prefix_ids) == 0:
            return None
        cache = DynamicCache(config=self._config)
        table_1L = np.asarray(prefix_ids, dtype=np.int64)[None]
        for _ in self._pieces(table_1L, cache, 0, wanted):
            yield
        return cache if wanted() else None

    def run(
        self, batch: MicroBatch, cache: DynamicCache | None, prefix_length: int, wanted: Callable[[], bool]
    ) -> Iterator[list[HiddenPiece]]:
        """Hidden states of all response positions of a batch, piece by piece; stops early once nobody wants them.

        The cache is left as it was.
        """
        table_BL = batch.padded()
        cache = self._expanded(cache, len(table_BL), table_BL.shape[1])
        for first_column, hidden_BLh in self._pieces(table_BL, cache, prefix_length, wanted):
            yield list(_response_positions(batch, first_column, hidden_BLh))

    def _expanded(self, cache: DynamicCache | None, rows: int, width: int) -> DynamicCache | None:
        if cache is None:
            one_piece = self.piece_tokens is None or rows * width <= self.piece_tokens
            return None if one_piece else DynamicCache(config=self._config)
        expanded = copy.deepcopy(cache)
        if rows > 1:
            # Selecting row 0 again and again also works for layers without keys (linear attention).
            first_row = torch.zeros(rows, dtype=torch.long, device=self._device)
            expanded.reorder_cache(cast(torch.LongTensor, first_row))
        return expanded

    def _pieces(
        self, table_BL: np.ndarray, cache: DynamicCache | None, offset: int, wanted: Callable[[], bool]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        rows, width = table_BL.shape
        step = width if self.piece_tokens is None else max(1, self.piece_tokens // rows)
        for start in range(0, width, step):
            if not wanted():
                return
            ids_BL = torch.from_numpy(table_BL[:, start : start + step].copy()).to(self._device)
            first = offset + start
            positions_1L = torch.arange(first, first + ids_BL.shape[1], device=self._device)[None]
            cached = {"use_cache": False} if cache is None else {"use_cache": True, self._cache_argument: cache}
            output = self._decoder(input_ids=ids_BL, position_ids=positions_1L.expand_as(ids_BL), **cached)
            yield start, output.last_hidden_state


def _response_positions(batch: MicroBatch, first_column: int, hidden_BLh: torch.Tensor) -> Iterator[HiddenPiece]:
    width = hidden_BLh.shape[1]
    for row, member in enumerate(batch.members):
        first_wanted = batch.first_columns[row]
        start = max(first_wanted, first_column)
        stop = min(len(batch.suffixes[row]), first_column + width)
        if start < stop:
            hidden_Ph = hidden_BLh[row, start - first_column : stop - first_column]
            yield HiddenPiece(member, start - first_wanted, hidden_Ph)
