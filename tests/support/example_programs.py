"""Loads programs that lie in no package (`examples/`, `scripts/`), and says what the loss of the examples should be."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from transformers import PreTrainedModel

from tokbridge_trainer.sparse_divergence import sparse_divergence
from tokbridge_trainer.target_tensors import TargetTensors

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
CONVERSATIONS = [[{"role": "user", "content": text}] for text in ("hello", "count to ten please", "why?", "go on")]


def load_file(path: Path) -> ModuleType:
    """The module of a file that lies in no package, under a name of its own."""
    name = f"{path.parent.name}_{path.stem}_program"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@torch.no_grad()
def loss_from_logits(
    model: PreTrainedModel,
    sequences: Sequence[torch.Tensor],
    prompt_lengths: Sequence[int],
    targets: Sequence[TargetTensors],
) -> float:
    """Σ over responses, each alone and unpadded, from the model's own logits; to be divided by Z.

    `targets` are of one response each.
    """
    total = 0.0
    for sequence_L, length, target in zip(sequences, prompt_lengths, targets, strict=True):
        logits_LV = model(input_ids=sequence_L[None]).logits[0]
        rows = length - 1 + target.row_index
        total += float(sparse_divergence(logits_LV[rows], target, normalizer=1.0).loss)
    return total
