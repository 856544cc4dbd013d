from typing import Any

import torch

class ModelConfig:
    max_model_len: int
    dtype: torch.dtype
    def get_hidden_size(self) -> int: ...

class VllmConfig:
    model_config: ModelConfig
    additional_config: dict[str, Any]

def __getattr__(name: str) -> Any: ...
