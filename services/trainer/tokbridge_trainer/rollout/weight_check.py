"""Whether a weight update is whole: asked before any of it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from tokbridge.errors import IncompleteWeightsError
from tokbridge_trainer.weights import WeightUpdate

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of parameters by name."""


def shapes_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> dict[str, tuple[int, ...]]:
    """Shapes of named parameters."""
    return {name: tuple(parameter.shape) for name, parameter in parameters}


def check_whole(update: WeightUpdate, expected: Shapes) -> None:
    """See that an update holds exactly these parameters, each of its shape.

    Raises:
        IncompleteWeightsError: parameters are missing, unknown or of another shape.
    """
    shapes = update.shapes
    problems = {
        "missing": expected.keys() - shapes.keys(),
        "unknown": shapes.keys() - expected.keys(),
        "of another shape": {name for name in expected.keys() & shapes.keys() if expected[name] != shapes[name]},
    }
    found = [f"{len(names)} {what} ({min(names)}, …)" for what, names in problems.items() if names]
    if found:
        raise IncompleteWeightsError(
            f"weights of version {update.version} do not fit this student: parameters {', '.join(found)}",
            version=update.version,
        )
