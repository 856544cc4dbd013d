"""The trained parameters of a policy version, as they travel from the learner to the rollout workers.

Full fine-tuning sends every parameter, LoRA the adapters only: what has a gradient travels. Arrays, not tensors, so
that Ray's object store shares one copy with all workers of a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

from tokbridge.errors import CheckpointError

_BITS = {torch.float32: torch.float32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""numpy has no bfloat16: such parameters travel as their bits."""


@dataclass(frozen=True)
class WeightSnapshot:
    """Trained parameters by name."""

    version: int
    """Optimizer steps they have seen."""
    dtype: str
    arrays: dict[str, NDArray[np.float32] | NDArray[np.int16]]


def snapshot_weights(model: torch.nn.Module, version: int, dtype: torch.dtype, *, keep: bool = True) -> WeightSnapshot:
    """Copy the parameters that are trained, in the type that the rollout workers compute in.

    Sharded parameters are gathered one at a time: every rank must call, and one keeps what it gets.

    Args:
        keep: false: on the ranks that only give their shards; theirs is empty.
    """
    arrays = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            whole = whole_tensor(parameter.detach().to(dtype))
            if keep:
                arrays[name] = whole.to("cpu", copy=True).view(_BITS[dtype]).numpy()
    return WeightSnapshot(version, str(dtype).removeprefix("torch."), arrays)


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor gathered from the shards of all ranks, each of which must call; one that is not sharded, as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def apply_weights(model: torch.nn.Module, snapshot: WeightSnapshot) -> None:
    """Copy a snapshot into a model of the same shape, in place."""
    parameters = dict(model.named_parameters())
    missing = snapshot.arrays.keys() - parameters.keys()
    if missing:
        raise CheckpointError(f"weights of another model: {min(missing)} is not a parameter of this one")
    dtype = getattr(torch, snapshot.dtype)
    with torch.no_grad():
        for name, array in snapshot.arrays.items():
            # Arrays from the object store are read-only, and only read here.
            parameters[name].copy_(_as_tensor(array).view(dtype))


def _as_tensor(array: NDArray[np.float32] | NDArray[np.int16]) -> torch.Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())
