"""The learner's side of weights that go from GPU to GPU: vLLM's own trainer engine for NCCL, fed with our parameters.

Learner and engines form one NCCL group, the learner as rank 0. The calls to the engines do not come from here: each
rollout worker is told by the driver what will arrive, behind the rollouts it has been given, and the broadcast waits
until all of them are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_ip, get_open_port

from tokbridge_trainer.weights import Rendezvous, WeightManifest


def open_rendezvous(world_size: int) -> Rendezvous:
    """An address on this machine where the group can meet."""
    return Rendezvous(get_ip(), get_open_port(), world_size)


class WeightBroadcast:
    """A group that has met, and what was last put up for it."""

    def __init__(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join as the learner; returns when all engines have joined. Of several learner ranks the first one sends."""
        self._source = _PutUpTensors()
        info = NCCLTrainerInitInfo(rendezvous.address, rendezvous.port, rendezvous.world_size, rank=rank)
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=_CalledByDriver(), source=self._source)

    def put_up(self, tensors: dict[str, torch.Tensor], version: int) -> WeightManifest:
        """Take the tensors of the next broadcast, on this rank's GPU; returns what the engines must expect."""
        self._source.tensors = tensors
        dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
        return WeightManifest(version, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, dtypes)

    def send(self) -> None:
        """Broadcast what was put up; returns when the engines have it all."""
        self._engine.send_weights()
        self._source.tensors = {}


class _PutUpTensors(WeightSource):
    """What is sent next."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def metadata(self) -> list[ParamMeta]:
        """As it will be sent."""
        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self.tensors.items())


class _CalledByDriver:
    """The calls by which vLLM's trainer engine would lead the engines; here the workers have made them already."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Done by `VllmEngine.join`."""

    def start_weight_update(self) -> None:
        """Done by `VllmEngine.replace_weights`."""

    def update_weights(self, update_info: Any) -> None:
        """Done by `VllmEngine.replace_weights`."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Done by `VllmEngine.replace_weights`."""
