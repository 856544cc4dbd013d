"""Time and peak memory beside TRL's GOLD loss (1.16), at the sizes of Qwen3.5 (student) and GLM-4 (teacher).

    python benchmarks/loss_against_gold.py [--tokens 512] [--hybrid]

GOLD takes dense logits of both models; its time and memory are counted from there, to the gradient in the student's
logits. Ours takes hidden states and sparse targets, and is counted to the gradients in hidden states and head, so it
does more. Tokens align one to one. `--hybrid` adds GOLD's matching of equal tokens: as many as the real pair shares,
the lowest ids standing for them. Each loss runs in a process of its own.

TRL comes with the extra `dev` or `trl`; without it only our side is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from _loss_inputs import VOCABULARY, make_inputs, peak_memory_bytes
from torch import Tensor

from tokbridge_trainer.loss import bpm_loss

TEACHER_VOCABULARY = 151_552
SHARED_TOKENS = 142_627
"""Tokens that GLM-4 and Qwen3.5 have in common (`tokbridge inspect` counts them)."""


def gold_loss(tokens: int, hybrid: bool) -> Callable[[], Tensor]:
    """GOLD on random logits of one response, its prompt one token long; everything else at TRL's defaults."""
    from trl.experimental.gold.gold_config import GOLDConfig  # pyright: ignore[reportMissingImports]
    from trl.experimental.gold.gold_trainer import ULDLoss  # pyright: ignore[reportMissingImports]

    config = GOLDConfig(use_uld_loss=True, uld_use_hybrid_loss=hybrid, report_to=[], use_cpu=True, bf16=False)
    config.uld_skip_student_eos = config.uld_skip_teacher_eos = False
    vocabulary = SimpleNamespace(get_vocab=lambda: {str(token_id): token_id for token_id in range(SHARED_TOKENS)})
    loss = ULDLoss(config, vocabulary, vocabulary)
    length = tokens + 1
    student_logits, teacher_logits = (torch.randn(1, length, v).mul_(3) for v in (VOCABULARY, TEACHER_VOCABULARY))
    student_logits.requires_grad_()
    ids = torch.ones(1, length, dtype=torch.long)
    labels = torch.where(torch.arange(length) == 0, -100, ids)
    starts = torch.arange(length)
    offsets = torch.stack([starts, starts + 1], -1)[None]
    return lambda: loss(student_logits, teacher_logits, labels, labels, ids, ids, offsets, offsets)


def fused_loss(tokens: int) -> Callable[[], Tensor]:
    """Ours, head trained."""
    inputs = make_inputs(tokens, train_head=True)
    return lambda: bpm_loss(inputs.hidden_RH, inputs.weight_VH, inputs.targets, normalizer=tokens).loss


def measure(case: str, tokens: int) -> None:
    """Print time and memory of one case, forward and backward, in this process."""
    loss = fused_loss(tokens) if case == "fused" else gold_loss(tokens, hybrid=case == "gold hybrid")
    start = time.perf_counter()
    peak = peak_memory_bytes(lambda: loss().backward())
    print(f"{case:12s} {tokens:4d} tokens {time.perf_counter() - start:8.1f} s {peak / 1e9:7.2f} GB")


def main() -> None:
    """Print one line a loss; with `--case`, one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--hybrid", action="store_true")
    parser.add_argument("--case", choices=["fused", "gold", "gold hybrid"])
    arguments = parser.parse_args()
    if arguments.case:
        measure(arguments.case, arguments.tokens)
        return
    has_trl = importlib.util.find_spec("trl") is not None
    cases = ["fused", *(["gold"] if has_trl else []), *(["gold hybrid"] if has_trl and arguments.hybrid else [])]
    for case in cases:
        command = [sys.executable, __file__, "--case", case, "--tokens", str(arguments.tokens)]
        subprocess.run(command, check=True)
    if not has_trl:
        print("GOLD was left out: `pip install 'tokbridge[trl]'`")


if __name__ == "__main__":
    main()
