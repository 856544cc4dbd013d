"""Weights for tests of rollouts: another model of the same shape, and updates that are not whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch
from transformers import PreTrainedModel

from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.student import load_base
from tokbridge_trainer.weights import WeightSnapshot


def own_model(config: TrainConfig) -> PreTrainedModel:
    """The configured student as it is, float32."""
    return load_base(config, config.student.model, torch.float32, torch.device("cpu"))


def another_model(config: TrainConfig, seed: int = 0) -> PreTrainedModel:
    """The configured student with other random weights, float32."""
    model = own_model(config)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=0.25)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def broken_snapshots(whole: WeightSnapshot) -> Iterator[WeightSnapshot]:
    """The snapshot with a parameter missing, one too many, and one of another shape."""
    first = next(iter(whole.arrays))
    without = {name: array for name, array in whole.arrays.items() if name != first}
    yield dataclasses.replace(whole, arrays=without)
    yield dataclasses.replace(whole, arrays=whole.arrays | {"model.surplus.weight": np.zeros((2, 2), np.float32)})
    yield dataclasses.replace(whole, arrays=without | {first: whole.arrays[first][:-1]})
