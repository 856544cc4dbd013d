"""Named arrays as bytes and back, by safetensors. What goes between this process and vLLM's workers is made of it.

Index arrays travel as int32: no vocabulary and no response has 2³¹ of anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tokbridge_teacher.targets.device_plan import Int64Array

Arrays = dict[str, NDArray[Any]]
"""By name, of different types."""


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays of any numeric type and shape; int64 is narrowed to int32."""
    return save({name: np.ascontiguousarray(_narrowed(array)) for name, array in arrays.items()})


def unpack_arrays(data: bytes) -> Arrays:
    """The arrays of `pack_arrays`; int64 comes back as int32, see `indices`."""
    return load(data)


def indices(array: NDArray[Any]) -> Int64Array:
    """An index array that was narrowed on its way."""
    return array.astype(np.int64)


def join_ragged(parts: Sequence[NDArray[Any]], dtype: type[np.generic]) -> tuple[NDArray[Any], Int64Array]:
    """Arrays [·] one after the other, and their lengths."""
    lengths = np.array([len(part) for part in parts], np.int64)
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype), lengths


def split_ragged(joined: NDArray[Any], lengths: NDArray[Any]) -> list[NDArray[Any]]:
    """The arrays of `join_ragged`."""
    return np.split(joined, np.cumsum(indices(lengths))[:-1]) if len(lengths) else []


def _narrowed(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.int32) if array.dtype == np.int64 else array
