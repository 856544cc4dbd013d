"""The order in which data is visited: a pure function of the seed and the position.

So a resumed run needs to know its step and nothing else.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def index_at(position: int, size: int, seed: int, shuffle: bool) -> int:
    """Which of `size` items stands at a position of the endless sequence of epochs."""
    epoch, offset = divmod(position, size)
    return int(_epoch_order(size, seed, epoch)[offset]) if shuffle else offset


@lru_cache(maxsize=4)
def _epoch_order(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[size] a permutation by seed and epoch."""
    return np.random.default_rng([seed, epoch]).permutation(size)
