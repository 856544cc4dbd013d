"""vLLM's entry point (`vllm.general_plugins`): runs in each of its processes, and does nothing unless a teacher starts.

The environment names the architecture, since that is what all of vLLM's processes inherit. Whoever else uses vLLM in
the same installation gets vLLM's own models.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from vllm import RegisteredModel

ARCHITECTURE_VARIABLE = "TOKBRIDGE_VLLM_ARCHITECTURE"
_MODELS = "tokbridge_teacher.backends.vllm.models"
_originals: dict[str, RegisteredModel] = {}


def register() -> None:
    """Put the pooling model in the place of the architecture that the environment names."""
    architecture = os.environ.get(ARCHITECTURE_VARIABLE)
    if architecture is None or architecture in _originals:
        return
    from vllm import ModelRegistry

    _originals[architecture] = ModelRegistry.models[architecture]
    ModelRegistry.register_model(architecture, f"{_MODELS}:{architecture}")


def original_class(architecture: str) -> type[nn.Module] | None:
    """vLLM's own class of an architecture that was registered here; None for any other."""
    if architecture not in _originals:
        return None
    return _originals[architecture].load_model_cls()
