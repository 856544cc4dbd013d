"""The parameters of a policy version, as they travel from the learner to the rollout workers.

Full fine-tuning sends every parameter, LoRA the adapters only: what has a gradient travels. (Engines that are not
transformers are sent the whole model instead, see `checkpoint_names.py`.) Arrays, not tensors, so that Ray's object
store shares one copy with all workers of a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor

_BITS = {torch.float32: torch.float32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
"""numpy has no bfloat16: such parameters travel as their bits."""


_CPU = torch.device("cpu")

WeightArray = NDArray[np.float32] | NDArray[np.int16]


@dataclass(frozen=True)
class WeightSnapshot:
    """Parameters by name."""

    version: int
    """Optimizer steps they have seen."""
    dtype: str
    """Of the arrays that hold bits."""
    arrays: dict[str, WeightArray]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters, by name."""
        return {name: array.shape for name, array in self.arrays.items()}


@dataclass(frozen=True)
class WeightManifest:
    """What a broadcast from GPU to GPU is about to carry, in this order."""

    version: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]


WeightUpdate = WeightSnapshot | WeightManifest
"""A policy version on its way: its parameters, or word of them."""


@dataclass(frozen=True)
class Rendezvous:
    """Where learner and engines meet to form a group for broadcasts."""

    address: str
    port: int
    world_size: int
    """The learner, as rank 0, and every tensor-parallel rank of every engine."""


def snapshot_weights(model: torch.nn.Module, version: int, dtype: torch.dtype, *, keep: bool = True) -> WeightSnapshot:
    """Copy the parameters that are trained, in the type that the rollout workers compute in.

    Sharded parameters are gathered one at a time: every rank must call, and one keeps what it gets.

    Args:
        keep: false: on the ranks that only give their shards; theirs is empty.
    """
    tensors = gathered(trained_parameters(model), dtype, keep=keep)
    arrays = {name: as_array(tensor) for name, tensor in tensors.items()}
    return WeightSnapshot(version, str(dtype).removeprefix("torch."), arrays)


def trained_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters that have a gradient."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def gathered(
    tensors: Iterable[tuple[str, torch.Tensor]], dtype: torch.dtype, *, keep: bool, device: torch.device = _CPU
) -> dict[str, torch.Tensor]:
    """Copies, whole and in `dtype`, gathered one at a time; none where they are not kept."""
    copies: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        whole = whole_tensor(tensor.detach().to(dtype))
        if keep:
            copies[name] = whole.to(device, copy=True)
    return copies


def whole_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor gathered from the shards of all ranks, each of which must call; one that is not sharded, as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def apply_weights(model: torch.nn.Module, snapshot: WeightSnapshot) -> None:
    """Copy a snapshot, found whole by `check_whole`, into the trained parameters of a model, in place."""
    parameters = dict(trained_parameters(model))
    with torch.no_grad():
        for name, array in snapshot.arrays.items():
            parameters[name].copy_(as_tensor(array, snapshot.dtype))


def as_array(tensor: torch.Tensor) -> WeightArray:
    """A CPU tensor as an array over the same memory; what is not float32 as its bits."""
    return tensor.contiguous().view(_BITS[tensor.dtype]).numpy()


def as_tensor(array: WeightArray, dtype: str) -> torch.Tensor:
    """The tensor again, bits taken for `dtype`. Arrays from the object store are read-only, and are copied."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if tensor.dtype == torch.float32 else tensor.view(getattr(torch, dtype))
