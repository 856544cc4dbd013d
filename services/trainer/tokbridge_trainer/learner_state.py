"""The optimizer of the learner: how it is made, and how it is kept in a checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from tokbridge.errors import CheckpointError
from tokbridge_trainer.config_sections import OptimizerConfig

_FILE = "optimizer.pt"


def make_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trained parameters; vectors (norms, biases) are not decayed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps)


def save_optimizer(optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write the optimizer's state into a checkpoint."""
    torch.save(optimizer.state_dict(), folder / _FILE)


def load_optimizer(optimizer: torch.optim.Optimizer, folder: Path, device: torch.device) -> None:
    """Read the optimizer's state from a checkpoint; tensors only, no pickled code.

    Raises:
        CheckpointError: there is none, or it is of another model.
    """
    try:
        optimizer.load_state_dict(torch.load(folder / _FILE, map_location=device, weights_only=True))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot load the optimizer's state from {folder}: {error}") from error
