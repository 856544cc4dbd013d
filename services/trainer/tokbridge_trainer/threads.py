"""How many threads torch takes in an actor; Ray would allow one."""

from __future__ import annotations

import os

import torch


def use_threads(count: int | None) -> None:
    """Set torch's threads; None: one for each core this process may run on."""
    torch.set_num_threads(count or len(os.sched_getaffinity(0)))
