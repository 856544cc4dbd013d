"""Hands each sample on the moment it is finished, while the rest of its batch still generates.

The watcher rides in `generate` as a stopping criterion: it is called after every token, it sees all ids, and it never
stops anything itself. What becomes of a finished sample is the caller's matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import StoppingCriteria

OnFinished = Callable[[int, NDArray[np.int64]], None]
"""Called with the row in the batch and the generated ids, the stop token included."""


class FinishedSamples(StoppingCriteria):
    """Calls `on_finished` once for each row, at its first stop token or at the length cap."""

    def __init__(self, stop_ids: frozenset[int], prompt_length: int, max_tokens: int, on_finished: OnFinished) -> None:
        self._stop_ids = torch.tensor(sorted(stop_ids))
        self._prompt_length = prompt_length
        self._max_tokens = max_tokens
        self._on_finished = on_finished
        self._finished: set[int] = set()

    def __call__(self, input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.BoolTensor:
        """[B] all False: who stops is decided by the stop tokens and the length cap."""
        num_generated = input_ids.shape[1] - self._prompt_length
        stopped = torch.isin(input_ids[:, -1].cpu(), self._stop_ids).tolist()
        for row, is_stop in enumerate(stopped):
            if row not in self._finished and (is_stop or num_generated >= self._max_tokens):
                self._finished.add(row)
                self._on_finished(row, input_ids[row, self._prompt_length :].cpu().numpy())
        return cast(torch.BoolTensor, torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device))
