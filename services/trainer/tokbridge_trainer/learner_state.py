"""The optimizer of the learner: how it is made, and its state as named tensors."""

from __future__ import annotations

import torch

from tokbridge_trainer.config_sections import OptimizerConfig


def make_optimizer(model: torch.nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the trained parameters; vectors (norms, biases) are not decayed. Its state exists from the start."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps)
    for parameter in trained:
        # As AdamW itself does at its first step; made now, a checkpoint can be loaded into it.
        optimizer.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimizer


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The tensors the optimizer works on, by parameter and name; what is copied into them is its state from then on."""
    return {
        f"optimizer.{name}.{key}": value
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for key, value in optimizer.state[parameter].items()
    }
