"""Starts the backend: finds the model's architecture, refuses what vLLM could not run as it is, starts the engine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from transformers import AutoConfig
from vllm import ModelRegistry

from tokbridge.errors import InvalidConfigError
from tokbridge.hub import local_folder
from tokbridge_teacher.backends.model_loading import find_gguf_file
from tokbridge_teacher.backends.vllm.backend import VllmBackend
from tokbridge_teacher.backends.vllm.engine import Engine
from tokbridge_teacher.backends.vllm.engine_config import VllmSettings, engine_arguments


def load_vllm(settings: VllmSettings) -> VllmBackend:
    """A backend whose engine is ready.

    Raises:
        InvalidConfigError: see `architecture_of`; or vLLM does not start, and its log says why.
        HubError: a hub id that cannot be fetched.
    """
    name = settings.model
    settings = replace(settings, model=str(local_folder(name, weights=True, code=settings.trust_remote_code)))
    architecture = architecture_of(settings)
    try:
        return VllmBackend(partial(Engine, engine_arguments(settings), architecture), name)
    except (ValueError, RuntimeError, TimeoutError) as error:
        raise InvalidConfigError(f"vLLM does not start with {name!r}: {error}", field="model") from error


def architecture_of(settings: VllmSettings) -> str:
    """The architecture that the model's `config.json` names.

    Raises:
        InvalidConfigError: there is no such model, or vLLM has none of its own for it.
    """
    if find_gguf_file(settings.model) is not None:
        raise InvalidConfigError(
            f"{settings.model!r} is a GGUF file, which the backend vllm does not read; use the backend huggingface.",
            field="model",
        )
    try:
        config = AutoConfig.from_pretrained(settings.model, trust_remote_code=settings.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidConfigError(f"No model can be loaded from {settings.model!r}: {error}", field="model") from error
    architectures = config.architectures or []
    if len(architectures) != 1:
        raise InvalidConfigError(f"{settings.model!r} does not name one architecture.", field="model")
    if architectures[0] not in ModelRegistry.get_supported_archs():
        raise InvalidConfigError(
            f"vLLM has no model for the architecture {architectures[0]!r}; use the backend huggingface.", field="model"
        )
    return architectures[0]
