"""What this repository uses of vLLM, so that types are checked where vLLM is not installed. Partial."""

from collections.abc import AsyncIterator, Sequence, Set
from typing import Any

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.sampling_params import SamplingParams as SamplingParams

class AsyncEngineArgs:
    def __init__(self, **arguments: Any) -> None: ...

class PoolingParams:
    extra_kwargs: dict[str, Any] | None
    def __init__(
        self, *, task: str, skip_reading_prefix_cache: bool, extra_kwargs: dict[str, Any] | None = None
    ) -> None: ...

class PoolingOutput:
    data: torch.Tensor

class PoolingRequestOutput:
    finished: bool
    outputs: PoolingOutput

class AsyncLLMEngine:
    model_config: ModelConfig
    errored: bool
    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> AsyncLLMEngine: ...
    def encode(
        self, prompt: dict[str, Any], pooling_params: PoolingParams, request_id: str
    ) -> AsyncIterator[PoolingRequestOutput]: ...
    async def collective_rpc(self, method: str, timeout: float | None = None, args: tuple[object, ...] = ()) -> Any: ...
    def shutdown(self) -> None: ...

class WeightVersionSpan:
    version: str

class CompletionOutput:
    token_ids: Sequence[int]
    finish_reason: str | None
    weight_versions: list[WeightVersionSpan] | None

class RequestOutput:
    request_id: str
    finished: bool
    outputs: list[CompletionOutput]

class LLMEngine:
    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> str: ...
    def has_unfinished_requests(self) -> bool: ...
    def step(self) -> list[RequestOutput]: ...
    def abort_request(self, request_ids: list[str]) -> None: ...

class LLM:
    llm_engine: LLMEngine
    def __init__(self, model: str, **arguments: Any) -> None: ...
    def generate(
        self, prompts: dict[str, Any], params: SamplingParams, use_tqdm: bool = True
    ) -> list[RequestOutput]: ...
    def init_weight_transfer_engine(self, request: dict[str, Any]) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, request: dict[str, Any]) -> None: ...
    def finish_weight_update(self, weight_version: str | None = None) -> None: ...
    def reset_prefix_cache(self) -> bool: ...

class RegisteredModel:
    def load_model_cls(self) -> type[nn.Module]: ...

class _ModelRegistry:
    models: dict[str, RegisteredModel]
    def get_supported_archs(self) -> Set[str]: ...
    def register_model(self, model_arch: str, model_cls: str) -> None: ...

ModelRegistry: _ModelRegistry

def __getattr__(name: str) -> Any: ...
