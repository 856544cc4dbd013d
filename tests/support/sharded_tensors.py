"""Tensors to be written and read, by one process or by several that share them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tokbridge_trainer.tensor_store import load_tensors, save_tensors


def some_tensors() -> dict[str, torch.Tensor]:
    """The same each time: of several types, one a scalar."""
    generator = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(7, 3, generator=generator),
        "b.weight": torch.randn(4, 5, generator=generator).bfloat16(),
        "b.bias": torch.randn(5, generator=generator),
        "a.step": torch.tensor(17.0),
    }


def emptied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of these shapes with other values."""
    return {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}


def assert_same(got: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    """Equal names, equal bits."""
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=0, atol=0)


def write_and_read_shards(rank: int, size: int, folder: Path) -> None:
    """One of several processes that write `some_tensors` together into `folder/state`, and read them again."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    mesh, whole = init_device_mesh("cpu", (size,)), some_tensors()
    save_tensors({name: _shard(tensor, mesh) for name, tensor in whole.items()}, folder / "state", dist.group.WORLD)
    read = {name: _shard(tensor, mesh) for name, tensor in emptied(whole).items()}
    load_tensors(read, folder / "state", dist.group.WORLD)
    assert_same({name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in read.items()}, whole)
    dist.destroy_process_group()


def _shard(tensor: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    return distribute_tensor(tensor, mesh, [Shard(0)]) if tensor.ndim else tensor.clone()
