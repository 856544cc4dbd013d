import torch
from vllm import PoolingParams

class PoolingCursor:
    seq_lens_cpu: torch.Tensor
    num_scheduled_tokens_cpu: torch.Tensor
    def get_finished_mask(self) -> list[bool]: ...

class PoolingStates: ...

class PoolingMetadata:
    pooling_params: list[PoolingParams]
    pooling_states: list[PoolingStates]
    def get_pooling_cursor(self) -> PoolingCursor: ...
