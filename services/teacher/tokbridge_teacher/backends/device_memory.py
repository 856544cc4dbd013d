"""Readings of a device's memory, for gauges. Knows PyTorch and no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch


def device_memory(device: str) -> Mapping[str, Callable[[], float]]:
    """Functions that read bytes now, by kind; none for a CPU.

    Args:
        device: as PyTorch names it, such as `cuda:0`.
    """
    if torch.device(device).type != "cuda":
        return {}
    return {
        "allocated": lambda: torch.cuda.memory_allocated(device),
        "reserved": lambda: torch.cuda.memory_reserved(device),
        "used": lambda: _used(device),
        "total": lambda: torch.cuda.mem_get_info(device)[1],
    }


def _used(device: str) -> int:
    free, total = torch.cuda.mem_get_info(device)
    return total - free
