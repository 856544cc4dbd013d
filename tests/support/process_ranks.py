"""Runs a function on several ranks: processes of their own, connected by gloo over a file."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from tokbridge_trainer.ranks import Ranks

T = TypeVar("T")
_TIMEOUT = timedelta(seconds=60)
"""A rank that waits for another in vain ends with an error, not never."""


def run_on_ranks(function: Callable[[Ranks, Path], T], size: int, folder: Path, scratch: Path) -> list[T]:
    """What the function, given rank and folder, returns on each rank. It must be importable, its result picklable.

    Args:
        scratch: an empty folder, where the ranks find one another.
    """
    rendezvous = scratch / "rendezvous"
    with ProcessPoolExecutor(size, multiprocessing.get_context("spawn")) as pool:
        calls = [pool.submit(_run, function, Ranks(rank, size), folder, rendezvous) for rank in range(size)]
        return [call.result() for call in calls]


def _run(function: Callable[[Ranks, Path], T], ranks: Ranks, folder: Path, rendezvous: Path) -> T:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=ranks.rank, world_size=ranks.size, timeout=_TIMEOUT
    )
    try:
        return function(ranks, folder)
    finally:
        dist.destroy_process_group()
