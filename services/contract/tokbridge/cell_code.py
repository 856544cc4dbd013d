"""A cell in four bytes: its id in the high bits of a little-endian uint32, its log-probability in the low ones.

The log-probability travels as the square root of its size, evenly divided: steps are finest near 0, where a probability
is near 1, and coarser where little mass is at stake. With the 14 bits that an id below 2^18 leaves, a step is 0.0008 at
a probability of ½ and 0.002 at 1e-3; rounding a row of entropy H costs about 2.5e-8·H nats of divergence. Masses below
e^−40 travel as e^−40, and only a mass of zero as none. Knows nothing of rows.

Axis: C cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CELL = np.dtype("<u4")
LEAST_ID_BITS, MOST_ID_BITS = 18, 22
"""Every vocabulary of up to 2^18 tokens has the same code; larger ones leave fewer bits to the log-probability."""
LOWEST_LOG_PROB = -40.0


def id_bits_for(largest_id: int) -> int:
    """Bits that ids take; more than `MOST_ID_BITS` do not fit."""
    return max(LEAST_ID_BITS, int(largest_id).bit_length())


def pack_cells(ids: NDArray[np.int32], log_probs: NDArray[np.float32], id_bits: int) -> NDArray[np.uint32]:
    """Cells [C] from ids and natural logarithms; what is above 0 is rounding noise and becomes 0."""
    log_prob_bits = 32 - id_bits
    steps = np.clip(log_probs.astype(np.float32), LOWEST_LOG_PROB, 0.0)
    np.sqrt(np.divide(steps, LOWEST_LOG_PROB, out=steps), out=steps)
    codes = np.rint(steps * np.float32(_last_step(id_bits))).astype(np.uint32)
    codes[np.isneginf(log_probs)] = _no_mass(id_bits)
    return (ids.astype(np.uint32) << np.uint32(log_prob_bits)) | codes


def unpack_cells(cells: NDArray[np.uint32], id_bits: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and log-probabilities [C], the latter at most 0."""
    codes = cells & np.uint32(_no_mass(id_bits))
    steps = codes.astype(np.float32) / np.float32(_last_step(id_bits))
    log_probs = (np.float32(LOWEST_LOG_PROB) * steps * steps).astype(np.float32, copy=False)
    log_probs[codes == _no_mass(id_bits)] = -np.inf
    return (cells >> np.uint32(32 - id_bits)).astype(np.int32), log_probs


def relative_rounding(log_share: NDArray[np.float64], id_bits: int) -> NDArray[np.float64]:
    """How far rounding moves the sum of cells whose mean size of log-probability is `log_share`, relative to it.

    Half a step at l is sqrt(L·l) / last step for L = 40; its mean over cells is largest where all are alike (Jensen).
    """
    return np.sqrt(-LOWEST_LOG_PROB * log_share) / _last_step(id_bits)


def _no_mass(id_bits: int) -> int:
    return 2 ** (32 - id_bits) - 1


def _last_step(id_bits: int) -> int:
    return _no_mass(id_bits) - 1
