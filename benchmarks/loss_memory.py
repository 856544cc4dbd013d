"""Peak memory of the fused loss at 2,048 rows, beside a dense Jensen–Shannon divergence over the full vocabulary.

    python benchmarks/loss_memory.py [--rows 2048] [--dense-rows 1024]

Each case runs in a process of its own; the figure is its peak resident memory, forward and backward, less what was
resident before: inputs (for the dense loss also the teacher's logits) are not counted. The dense loss at 2,048 rows
needs about 20 GB, so by default it is measured at half as many rows, and at a quarter to show that it is linear; the
ratio compares it at `--dense-rows` with ours at `--rows`, a lower bound. Linux only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

import torch
from _loss_inputs import HIDDEN, VOCABULARY, LossInputs, make_inputs, peak_memory_bytes
from torch import Tensor

from tokbridge_trainer.loss import bpm_loss


def dense_jsd(inputs: LossInputs, teacher_logits_RV: Tensor) -> Tensor:
    """JSD (β = ½) of two dense distributions of one vocabulary, as one would write it."""
    student_RV = (inputs.hidden_RH @ inputs.weight_VH.t()).log_softmax(-1)
    teacher_RV = teacher_logits_RV.log_softmax(-1)
    mixture_RV = torch.logaddexp(student_RV, teacher_RV) - torch.log(torch.tensor(2.0))
    forward = torch.nn.functional.kl_div(mixture_RV, teacher_RV, log_target=True, reduction="sum")
    reverse = torch.nn.functional.kl_div(mixture_RV, student_RV, log_target=True, reduction="sum")
    return 0.5 * (forward + reverse) / len(student_RV)


def measure(case: str, rows: int) -> int:
    """Peak bytes of one case, in this process."""
    inputs = make_inputs(rows, train_head=case.endswith("trained"))
    if case.startswith("dense"):
        teacher_logits_RV = torch.randn(rows, VOCABULARY)
        return peak_memory_bytes(lambda: dense_jsd(inputs, teacher_logits_RV).backward())
    return peak_memory_bytes(
        lambda: bpm_loss(inputs.hidden_RH, inputs.weight_VH, inputs.targets, normalizer=rows).loss.backward()
    )


def measure_apart(case: str, rows: int) -> int:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--case", case, "--rows", str(rows)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print the table; with `--case`, one figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_048)
    parser.add_argument("--dense-rows", type=int, default=1_024)
    parser.add_argument("--case", choices=["fused frozen", "fused trained", "dense frozen", "dense trained"])
    arguments = parser.parse_args()
    if arguments.case:
        print(measure(arguments.case, arguments.rows))
        return
    head_bytes = VOCABULARY * HIDDEN * 4
    print(f"V = {VOCABULARY:,}, h = {HIDDEN}, float32; the head's gradient alone is {head_bytes / 1e9:.2f} GB")
    for head, gradient_bytes in (("frozen", 0), ("trained", head_bytes)):
        report(head, gradient_bytes, arguments.rows, arguments.dense_rows, measure_apart)


def report(head: str, gradient_bytes: int, rows: int, dense_rows: int, measured: Callable[[str, int], int]) -> None:
    """One block of the table: what each loss takes beyond the head's gradient, and the ratio."""
    fused = measured(f"fused {head}", rows) - gradient_bytes
    dense, half = (measured(f"dense {head}", n) - gradient_bytes for n in (dense_rows, dense_rows // 2))
    print(f"head {head}, peak beyond the head's gradient:")
    print(f"  fused  {rows:5d} rows {fused / 1e9:7.3f} GB")
    print(f"  dense  {dense_rows:5d} rows {dense / 1e9:7.3f} GB  ({dense_rows // 2} rows: {half / 1e9:.3f} GB)")
    print(f"  dense / fused: {dense / fused:.1f}; scaled to {rows} rows: {dense / fused * rows / dense_rows:.1f}")


if __name__ == "__main__":
    main()
