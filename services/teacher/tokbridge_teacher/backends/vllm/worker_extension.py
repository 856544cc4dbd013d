"""Calls that reach every vLLM worker (`worker_extension_cls`): a student's tables, and the check of the LM head.

vLLM mixes the class into its worker, which must not have an attribute of the same name, hence the prefix.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from vllm.config import ModelConfig

from tokbridge_teacher.backends.vllm.head_check import check_head
from tokbridge_teacher.backends.vllm.plan_codec import decode_tables
from tokbridge_teacher.backends.vllm.target_pooler import TargetPooler
from tokbridge_teacher.routing.device_tables import DeviceTables


class _Worker(Protocol):
    """What vLLM's worker has."""

    device: torch.device
    model_config: ModelConfig

    def get_model(self) -> nn.Module: ...


class TeacherWorker:
    """What a worker can beside vLLM's own calls."""

    def tokbridge_put_tables(self: _Worker, key: str, data: bytes) -> None:
        """Keep a pair's tables until they are dropped."""
        _pooler(self).tables[key] = DeviceTables(decode_tables(data), self.device)

    def tokbridge_drop_tables(self: _Worker, keys: list[str]) -> None:
        """Forget tables that nobody asks for any more."""
        for key in keys:
            _pooler(self).tables.pop(key, None)

    def tokbridge_check_head(self: _Worker) -> tuple[int, float]:
        """Rows of the LM head, and how far the device pass is from the model's own log-probs (`check_head`)."""
        size, dtype = self.model_config.get_hidden_size(), self.model_config.dtype
        return check_head(self.get_model(), _pooler(self), size, dtype, self.device)


def _pooler(worker: _Worker) -> TargetPooler:
    pooler = worker.get_model().pooler
    assert isinstance(pooler, TargetPooler)
    return pooler
