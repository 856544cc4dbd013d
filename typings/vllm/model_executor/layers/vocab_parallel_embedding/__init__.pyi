from typing import Protocol

import torch
from torch import nn

class UnquantizedEmbeddingMethod: ...

class EmbeddingMethod(Protocol):
    def process_weights_after_loading(self, layer: nn.Module) -> None: ...

class VocabParallelEmbedding(nn.Module):
    weight: torch.Tensor
    quant_method: EmbeddingMethod

class ParallelLMHead(VocabParallelEmbedding): ...
