"""Named tensors in a folder, whole or sharded: safetensors files written by `torch.distributed.checkpoint`.

Each rank writes its own shards, and any number of ranks can read them again, one without a process group included.
Tensors only, so nothing that is read here can run code. The module knows neither models nor checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tokbridge.errors import CheckpointError

_BYTES_A_FILE = 2**31
"""A file is put together in memory before it is written."""


def save_tensors(tensors: Mapping[str, torch.Tensor], folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Write tensors by name; with a group every rank of it must call, each with its shards.

    Raises:
        CheckpointError: a rank could not write; nobody waits for the others then.
    """
    writer = HuggingFaceStorageWriter(str(folder), _file_numbers(tensors), save_distributed=True)
    try:
        save(_with_axes(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise CheckpointError(f"cannot write tensors into {folder}: {_cause(error)}") from error


def load_tensors(into: Mapping[str, torch.Tensor], folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Fill tensors, sharded as they may be, in place from a folder; what else it holds is left alone.

    Raises:
        CheckpointError: one is missing there, or has another shape.
    """
    reader = HuggingFaceStorageReader(str(folder))
    try:
        load(_with_axes(into), storage_reader=reader, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise CheckpointError(f"cannot load tensors from {folder}: {_cause(error)}") from error


def _with_axes(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Views of the same memory; scalars as [1], which is what the format can cut out of a file."""
    return {name: tensor.detach() if tensor.ndim else tensor.detach().view(1) for name, tensor in tensors.items()}


def _file_numbers(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Which file, from 1, each tensor goes to."""
    numbers: dict[str, int] = {}
    number, filled = 1, 0
    for name, tensor in tensors.items():
        if filled and filled + tensor.nbytes > _BYTES_A_FILE:
            number, filled = number + 1, 0
        numbers[name] = number
        filled += tensor.nbytes
    return numbers


def _cause(error: CheckpointException) -> str:
    """What the first rank that failed says."""
    fault, _ = next(iter(error.failures.values()))
    return f"{type(fault).__name__}: {fault}"
