from abc import ABC
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from vllm.config import ModelConfig

class WeightTransferInitInfo: ...
class WeightTransferUpdateInfo: ...

TInit = TypeVar("TInit", bound=WeightTransferInitInfo)
TUpdate = TypeVar("TUpdate", bound=WeightTransferUpdateInfo)

class LoadableModel(nn.Module):
    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str] | None: ...

class WeightTransferEngine(ABC, Generic[TInit, TUpdate]):
    init_info_cls: type[TInit]
    update_info_cls: type[TUpdate]
    supports_draft_weight_update: bool
    model: LoadableModel
    model_config: ModelConfig
    device: torch.device
    def __init__(self, *arguments: Any) -> None: ...
    def init_transfer_engine(self, init_info: TInit) -> None: ...
    def start_weight_update(self) -> None: ...
    def receive_weights(self, update_info: TUpdate) -> None: ...
    def finish_weight_update(self) -> None: ...
    def shutdown(self) -> None: ...

@dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

class WeightSource(ABC):
    def metadata(self) -> list[ParamMeta]: ...
    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]: ...

class TrainerWeightTransferEngine:
    def send_weights(self) -> None: ...
