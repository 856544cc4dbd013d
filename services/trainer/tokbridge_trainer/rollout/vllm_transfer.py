"""How weights get into vLLM's own workers: engines of its weight-transfer interface, for arrays and for broadcasts.

This module runs inside vLLM's workers, one for each tensor-parallel rank, and knows nothing of the trainer but its
array format. vLLM finds it through `WorkerExtension`, whose import registers the engines. Weights bear Hugging Face
names; the model's own `load_weights` fuses, shards and repacks them, as it does when it reads a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from tokbridge_trainer.rollout.vllm_arguments import BROADCAST_BACKEND, TRANSFER_BACKEND
from tokbridge_trainer.weights import WeightArray, as_tensor


@dataclass
class NoInitInfo(WeightTransferInitInfo):
    """Arrays need no connection."""


@dataclass
class ArrayUpdateInfo(WeightTransferUpdateInfo):
    """A part of an update."""

    arrays: dict[str, WeightArray]
    dtype: str
    is_last: bool


class ArrayTransferEngine(WeightTransferEngine[NoInitInfo, ArrayUpdateInfo]):
    """Loads arrays part by part and sees that, in the end, every weight of the model was given."""

    init_info_cls = NoInitInfo
    update_info_cls = ArrayUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._is_open = False
        self._not_given: set[str] = set()

    def init_transfer_engine(self, init_info: NoInitInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Make room; what an update that broke off has left is cleared first, or vLLM would count it in."""
        if self._is_open:
            finalize_layerwise_reload(self.model, self.model_config)
        self._not_given = {name for name, _ in self.model.named_parameters()}
        self._is_open = True
        name_loaders(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ArrayUpdateInfo) -> None:
        """Load a part.

        Raises:
            ValueError: it is the last one, and a weight of the model was in none of them. (Raised here and not at the
                finish: vLLM lets a new update begin after a failed part, but not after a failed finish.)
        """
        tensors = ((name, as_tensor(array, update_info.dtype)) for name, array in update_info.arrays.items())
        loaded = self.model.load_weights(tensors)
        self._not_given -= self._not_given if loaded is None else loaded  # a few models do not tell
        if update_info.is_last and self._not_given:
            raise ValueError(f"{len(self._not_given)} weights were not given, {min(self._not_given)} among them")

    def finish_weight_update(self) -> None:
        """Put the new weights in place."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            repack_tied_heads(self.model)
            repack_experts(self.model)
        self._is_open = False

    def shutdown(self) -> None:
        """Nothing to close."""


class BroadcastTransferEngine(NCCLWeightTransferEngine):
    """vLLM's engine for NCCL, which trips over the same nameless loaders."""

    def start_weight_update(self) -> None:
        """Make room."""
        name_loaders(self.model)
        super().start_weight_update()


def name_loaders(model: torch.nn.Module) -> None:
    """vLLM knows the loaders that it has wrapped by their name, and a `partial` (MiniMax-M2 has some) bears none."""
    for weight in model.parameters():
        loader = getattr(weight, "weight_loader", None)
        if isinstance(loader, partial):
            vars(loader)["__name__"] = loader.func.__name__


def repack_tied_heads(model: torch.nn.Module) -> None:
    """On CPU an LM head computes with a packed copy, which vLLM makes anew for layers that were given weights. A head
    that shares the embedding's was given none."""
    vocabulary_layers = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    embeddings = {id(layer.weight) for layer in vocabulary_layers if not isinstance(layer, ParallelLMHead)}
    for layer in vocabulary_layers:
        if isinstance(layer, ParallelLMHead) and id(layer.weight) in embeddings:
            layer.quant_method.process_weights_after_loading(layer)


def repack_experts(model: torch.nn.Module) -> None:
    """On CPU experts compute with packed weights as well, which vLLM packs when it loads and not when it updates."""
    for layer in model.modules():
        kernel = getattr(getattr(layer, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(layer)


class WorkerExtension:
    """Adds nothing to vLLM's worker: that vLLM imports it in every worker is what registers the engines."""


WeightTransferEngineFactory.register_engine(TRANSFER_BACKEND, ArrayTransferEngine)
WeightTransferEngineFactory.register_engine(BROADCAST_BACKEND, BroadcastTransferEngine)
