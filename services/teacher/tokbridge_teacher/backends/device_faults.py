"""What a fault of a pass says about the device it ran on.

Some faults of a CUDA device (an assert on it, an illegal address, an uncorrectable memory error) end its context: every
later call of the process fails, too. Whether that is so is found out by asking the device for a sum, not by the wording
of an error.
"""

from __future__ import annotations

import torch

from tokbridge.errors import InternalError
from tokbridge_teacher.backends.base import BackendLostError, DeviceMemoryError


def fault_of_device(error: RuntimeError, device: torch.device) -> InternalError | None:
    """The typed error that callers get in place of one that a pass raised; None if the device is not to blame.

    Blocks that the allocator keeps for later are given back when it was short of memory.
    """
    if isinstance(error, torch.OutOfMemoryError):
        torch.cuda.empty_cache()
        return DeviceMemoryError("The teacher's device has no memory left for this batch.")
    if computes(device):
        return None
    return BackendLostError("The teacher's device computes nothing any more; the service ends, to be started anew.")


def computes(device: torch.device) -> bool:
    """Whether the device still adds two numbers; one without memory for them may."""
    try:
        return torch.ones(2, device=device).sum().item() == 2
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False
