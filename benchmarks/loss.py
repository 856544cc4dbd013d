"""Time of the fused loss against a loss that gathers from dense logits, forward and backward, head included.

    python benchmarks/loss.py [--rows 512] [--rounds 5] [--frozen-head] [--threads 0]

Both take hidden states and the head, and give the same loss; runs alternate, medians and their ratio are printed. The
dense one is what one would write first: logits of all rows, log_softmax, gather, log1p for the rest, autograd.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from _loss_inputs import CELLS, HIDDEN, VOCABULARY, LossInputs, make_inputs
from torch import Tensor

from tokbridge_trainer.loss import bpm_loss


def fused_loss(inputs: LossInputs) -> Tensor:
    """Ours."""
    rows = inputs.targets.num_rows
    return bpm_loss(inputs.hidden_RH, inputs.weight_VH, inputs.targets, normalizer=rows).loss


def gathered_loss(inputs: LossInputs) -> Tensor:
    """The same divergence (β = ½) from dense log-probabilities; rows all have `CELLS` cells."""
    log_probs_RV = (inputs.hidden_RH @ inputs.weight_VH.t()).float().log_softmax(-1)
    cells_RK = log_probs_RV.gather(1, inputs.targets.cell_ids.view(-1, CELLS))
    rest_R1 = torch.log1p(-cells_RK.exp().sum(1, keepdim=True))
    student_RP = torch.cat([cells_RK, rest_R1], 1)
    targets = inputs.targets
    target_RP = torch.cat([targets.cell_log_probs.view(-1, CELLS), targets.residual_log_mass[:, None]], 1)
    mixture_RP = torch.logaddexp(student_RP, target_RP) - torch.log(torch.tensor(2.0))
    forward_R = (target_RP.exp() * (target_RP - mixture_RP)).sum(1)
    reverse_R = (student_RP.exp() * (student_RP - mixture_RP)).sum(1)
    return 0.5 * (forward_R + reverse_R).mean()


def run(loss: Callable[[LossInputs], Tensor], inputs: LossInputs) -> tuple[float, float]:
    """(seconds, loss) of one forward and backward pass."""
    inputs.zero_grad()
    start = time.perf_counter()
    value = loss(inputs)
    value.backward()
    return time.perf_counter() - start, float(value.detach())


def main() -> None:
    """Print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frozen-head", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="0: torch's own choice")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    inputs = make_inputs(arguments.rows, train_head=not arguments.frozen_head)
    pairs = [(run(fused_loss, inputs), run(gathered_loss, inputs)) for _ in range(arguments.rounds)]
    fused_s, dense_s = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    ratio = statistics.median(fused[0] / dense[0] for fused, dense in pairs)
    head = "frozen" if arguments.frozen_head else "trained"
    print(f"{arguments.rows} rows, V = {VOCABULARY:,}, h = {HIDDEN}, head {head}, {torch.get_num_threads()} threads")
    print(f"fused     {fused_s:7.2f} s   loss {pairs[0][0][1]:.6f}")
    print(f"gathered  {dense_s:7.2f} s   loss {pairs[0][1][1]:.6f}")
    print(f"fused / gathered: {ratio:.3f} (median of {arguments.rounds} interleaved pairs)")


if __name__ == "__main__":
    main()
