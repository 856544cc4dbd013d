"""Settings of the backend as arguments of vLLM's engine, and what is refused before vLLM loads anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions

_EXTENSION = "tokbridge_teacher.backends.vllm.worker_extension.TeacherWorker"
_MAX_RESPONSES = 256
"""In one forward pass."""


@dataclass(frozen=True)
class VllmSettings:
    """What the operator chooses of an engine."""

    model: str
    worker: WorkerOptions
    dtype: str = "auto"
    max_model_len: int | None = None
    step_tokens: int = 2048
    """Tokens of one forward pass, over all responses."""
    tensor_parallel_size: int = 1
    memory_fraction: float = 0.9
    """Of each GPU's memory that vLLM may use."""
    eager: bool = False
    """Neither compile nor capture graphs: starts sooner, runs slower."""
    trust_remote_code: bool = False


def engine_arguments(settings: VllmSettings) -> dict[str, Any]:
    """Arguments of `AsyncEngineArgs`.

    One response takes at most half of a forward pass, so that a long one does not hold up the others.
    """
    return {
        "model": settings.model,
        "runner": "pooling",
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.step_tokens,
        "max_num_seqs": min(settings.step_tokens, _MAX_RESPONSES),
        "long_prefill_token_threshold": max(1, settings.step_tokens // 2),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "gpu_memory_utilization": settings.memory_fraction,
        "enforce_eager": settings.eager,
        "trust_remote_code": settings.trust_remote_code,
        "load_format": "safetensors",  # a pickle runs whatever code it holds
        "skip_tokenizer_init": True,  # token ids come in, none go out
        "language_model_only": True,
        "worker_extension_cls": _EXTENSION,
        "additional_config": settings.worker.to_config(),
        "disable_log_stats": True,
    }
