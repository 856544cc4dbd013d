"""Teachers as vLLM loads them: any of its causal models, with the pooler in place of sampling.

A module attribute for each architecture, made on first use, since vLLM names model classes by module and attribute in
every process. The class keeps its name, so that all that vLLM ties to an architecture's name still holds.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

from tokbridge_teacher.backends.vllm.plugin import original_class
from tokbridge_teacher.backends.vllm.target_pooler import TargetPooler


def __getattr__(name: str) -> type[nn.Module]:
    """The pooling model of an architecture that `plugin` registered.

    Raises:
        AttributeError: it is none of those.
    """
    base = original_class(name)
    if base is None:
        raise AttributeError(name)
    model_class = _pooling_class(name, base)
    globals()[name] = model_class
    return model_class


def _pooling_class(name: str, base: type[nn.Module]) -> type[nn.Module]:
    def initialize(self: Any, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        base.__init__(self, vllm_config=vllm_config, prefix=prefix)
        _keep_quantised_head(self)
        self.pooler = TargetPooler(self.compute_logits, vllm_config)

    members = {"__init__": initialize, "__module__": __name__, "is_pooling_model": True}
    return type(name, (base,), members)


def _keep_quantised_head(model: nn.Module) -> None:
    """vLLM computes a pooling model's head in float32, which a quantised one cannot be: that stays as it is."""
    modules = list(model.modules())
    plain = (UnquantizedEmbeddingMethod, UnquantizedLinearMethod)
    if all(isinstance(head.quant_method, plain) for head in modules if isinstance(head, ParallelLMHead)):
        return
    for processor in modules:
        if isinstance(processor, LogitsProcessor):
            processor.head_dtype = None
