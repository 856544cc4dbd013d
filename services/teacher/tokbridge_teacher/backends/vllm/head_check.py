"""Compares the device pass with the logits that the model itself gives, inside a worker.

The model's own logits are those that vLLM would sample from: whatever the model does after its LM head (scaling,
soft-capping, a wrapper's own head) is in them, and its head is rounded to the model's dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from vllm.model_executor.layers.logits_processor import LogitsProcessor

from tokbridge_teacher.backends.vllm.largest_pass import largest_slice, largest_tables
from tokbridge_teacher.backends.vllm.target_pooler import TargetPooler
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.targets.marginal import marginalize

_ROWS = 24
_CELLS = 8
_SEED = 20260722


@torch.inference_mode()
def check_head(
    model: nn.Module, pooler: TargetPooler, hidden_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, float]:
    """Rows V of the LM head, and the largest difference of a log-prob, in nats, over the likeliest cells of random
    hidden states. Every rank must call it.
    """
    generator = torch.Generator().manual_seed(_SEED)
    hidden_Ph = torch.randn((_ROWS, hidden_size), generator=generator).to(device, dtype)
    with _own_dtype(model):
        own_PV = torch.log_softmax(pooler.logits(hidden_Ph).double(), dim=-1)
    logits_PV = pooler.logits(hidden_Ph)
    head_size = logits_PV.shape[1]
    tables = DeviceTables(largest_tables(head_size, head_size), device)
    chunk = marginalize(logits_PV, largest_slice(_ROWS, _CELLS), tables)
    rows, ids = torch.arange(_ROWS - 1, device=device)[:, None], torch.from_numpy(chunk.top_ids[:-1]).to(device).long()
    expected = own_PV[rows, ids].cpu().numpy()
    return head_size, float(np.abs(np.log(chunk.top_probs[:-1].astype(np.float64)) - expected).max())


@contextmanager
def _own_dtype(model: nn.Module) -> Iterator[None]:
    """Run LM heads in the model's dtype, as vLLM does when it samples."""
    processors = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    dtypes = [processor.head_dtype for processor in processors]
    for processor in processors:
        processor.head_dtype = None
    try:
        yield
    finally:
        for processor, dtype in zip(processors, dtypes, strict=True):
            processor.head_dtype = dtype
