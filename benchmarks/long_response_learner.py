"""A response of 27,648 tokens through the learner's forward and backward pass at Qwen3.5's 248k vocabulary.

Memory: the fused loss at full length, with its own chunk size and a smaller one; two dense losses at lengths where they
still fit, and what that gives at full length. A dense loss takes c + b·N bytes for N rows: b is read off two lengths, a
third shows that it is a line. Peaks are of resident memory beyond model and targets, each in a process of its own, and
hold the whole step: activations, the loss, all gradients. "jsd" is the full-vocabulary divergence of dense students and
teachers (its teacher's logits are not counted); "gathered" is the kindest dense loss, the same value as ours from
log-softmax and gather.

Time: interleaved runs of fused, gathered and jsd at the longest of the dense lengths, medians of the ratios.

    python benchmarks/long_response_learner.py [--tokens 27648] [--dense-tokens 128 256 512] [--rounds 5]

The student has one layer, hidden size 64 and a tied head; `benchmarks/loss.py` has h = 1,024. Linux only.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from loss import gathered_loss
from loss_memory import dense_jsd
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from _loss_inputs import CELLS, VOCABULARY, LossInputs, make_targets, peak_memory_bytes

from support.training import make_sample, score
from tokbridge.targets import RowCase, TargetRows
from tokbridge_trainer.config_sections import LossConfig
from tokbridge_trainer.head import lm_head
from tokbridge_trainer.packed_attention import allow_packing, hidden_states
from tokbridge_trainer.packing import lay_out, sequence_ids
from tokbridge_trainer.projection import MicroBatchLoss
from tokbridge_trainer.samples import ScoredSample
from tokbridge_trainer.student_module import Forward, StudentModule, examine
from tokbridge_trainer.target_tensors import TargetTensors

HIDDEN = 64
PROMPT = 16
DENSE = ("gathered", "jsd")


def make_student() -> PreTrainedModel:
    """One layer under a tied head of Qwen3.5's size, float32."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1 << 16,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    allow_packing(model)
    return model


def make_scored(tokens: int) -> ScoredSample:
    """A response of random ids, `CELLS` cells a row."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (PROMPT + tokens,), generator=generator).tolist()
    targets = make_targets(tokens, generator)
    zeros = np.zeros(tokens, np.float32)
    rows = TargetRows(
        first_row=0,
        cases=np.full(tokens, RowCase.ALIGNED, np.uint8),
        flags=np.zeros(tokens, np.uint8),
        row_offsets=targets.row_offsets.numpy(),
        cell_ids=targets.cell_ids.numpy().astype(np.int32),
        cell_log_probs=targets.cell_log_probs.numpy(),
        residual_unmapped=zeros,
        residual_control=zeros,
        residual_truncated=targets.residual_log_mass.exp().numpy(),
        emitted_log_prob=targets.emitted_log_probs.numpy(),
    )
    return score(make_sample(ids[:PROMPT], ids[PROMPT:]), rows)


@dataclass(frozen=True)
class Bench:
    """A student and one scored response; each case is a forward and a backward pass over it."""

    student: StudentModule
    forward: Forward
    scored: ScoredSample

    @property
    def model(self) -> PreTrainedModel:
        """The student's own."""
        return self.student.model

    def run(self, case: str, chunk_rows: int | None = None) -> None:
        """`fused`: the learner's own code; `gathered`, `jsd`: the same hidden states, then a dense loss."""
        self.model.zero_grad(set_to_none=True)
        if case == "fused":
            loss = MicroBatchLoss(self.student, self.forward, LossConfig(chunk_rows=chunk_rows), seed=0)
            loss.rows([self.scored], beta=0.5, normalizer=float(self.scored.sample.num_response_tokens))
            return
        self._dense_loss(case).backward()

    def _dense_loss(self, case: str) -> Tensor:
        sequences = [sequence_ids(self.scored.sample)]
        tokens = lay_out(sequences, packed=self.forward.packed, device=torch.device("cpu"))
        hidden_RH = hidden_states(self.model, tokens, torch.float32)[PROMPT - 1 : -1]
        targets = TargetTensors.from_rows([self.scored.rows])
        inputs = LossInputs(hidden_RH, lm_head(self.model).weight, targets)
        return gathered_loss(inputs) if case == "gathered" else dense_jsd(inputs, self.teacher_logits_RV)

    @property
    def teacher_logits_RV(self) -> Tensor:
        """Dense logits that a teacher of the same vocabulary would give; made once."""
        return _teacher_logits(self.scored.sample.num_response_tokens)


_LOGITS: dict[int, Tensor] = {}


def _teacher_logits(rows: int) -> Tensor:
    if rows not in _LOGITS:
        _LOGITS[rows] = torch.randn(rows, VOCABULARY)
    return _LOGITS[rows]


def make_bench(tokens: int) -> Bench:
    """Everything that is there before a step."""
    student = StudentModule(make_student())
    return Bench(student, examine(student, torch.float32, packing=True), make_scored(tokens))


def peak_here(case: str, tokens: int, chunk_rows: int | None) -> int:
    """Peak bytes of one case, in this process."""
    bench = make_bench(tokens)
    if case == "jsd":
        _teacher_logits(tokens)
    return peak_memory_bytes(lambda: bench.run(case, chunk_rows))


def peak_apart(case: str, tokens: int, chunk_rows: int | None = None) -> int:
    """The same in a fresh process."""
    chunk = [] if chunk_rows is None else ["--chunk-rows", str(chunk_rows)]
    command = [sys.executable, __file__, "--case", case, "--tokens", str(tokens), *chunk]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def seconds_of(bench: Bench, case: str) -> float:
    """One forward and backward pass."""
    started = time.perf_counter()
    bench.run(case)
    return time.perf_counter() - started


def report_memory(tokens: int, dense_tokens: list[int]) -> None:
    """Peaks, the line through the dense ones, the ratio at full length."""
    fused = {chunk: peak_apart("fused", tokens, chunk) for chunk in (None, 64)}
    for chunk, peak in fused.items():
        print(f"fused     {tokens:6d} tokens  {peak / 1e9:7.3f} GB   chunk {chunk or 'as fits 256 MiB'}", flush=True)
    for case in DENSE:
        peaks = {n: peak_apart(case, n) for n in dense_tokens}
        for n, peak in peaks.items():
            print(f"{case:9} {n:6d} tokens  {peak / 1e9:7.3f} GB", flush=True)
        low, high = dense_tokens[0], dense_tokens[-1]
        slope = (peaks[high] - peaks[low]) / (high - low)
        there = peaks[high] + slope * (tokens - high)
        line = f"{peaks[high] / 1e9:.3f} GB + {slope / 1e6:.2f} MB × {tokens - high} rows"
        print(
            f"{case:9} {tokens:6d} tokens  {there / 1e9:7.1f} GB   = {line} ({slope / VOCABULARY / 4:.1f} logits a row)"
        )
        print(f"{case} / fused at {tokens} tokens: {there / fused[None]:.0f}")


def report_time(tokens: int, rounds: int) -> None:
    """Interleaved runs at a length where the dense losses fit."""
    bench = make_bench(tokens)
    _teacher_logits(tokens)
    cases = ("fused", *DENSE)
    bench.run("fused")
    runs = [{case: seconds_of(bench, case) for case in cases} for _ in range(rounds)]
    medians = {case: statistics.median(run[case] for run in runs) for case in cases}
    print(f"{tokens} tokens, forward and backward: " + ", ".join(f"{case} {s:.2f} s" for case, s in medians.items()))
    for case in DENSE:
        ratio = statistics.median(run["fused"] / run[case] for run in runs)
        print(f"fused / {case}: {ratio:.2f} (median of {rounds} interleaved rounds)")


def main() -> None:
    """Print everything; with `--case`, one peak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=27_648)
    parser.add_argument("--dense-tokens", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=["fused", *DENSE])
    parser.add_argument("--chunk-rows", type=int)
    arguments = parser.parse_args()
    if arguments.case:
        print(peak_here(arguments.case, arguments.tokens, arguments.chunk_rows))
        return
    print(f"V = {VOCABULARY:,}, h = {HIDDEN}, {CELLS} cells a row, float32; the head's gradient is in every peak")
    report_memory(arguments.tokens, arguments.dense_tokens)
    report_time(arguments.dense_tokens[-1], arguments.rounds)


if __name__ == "__main__":
    main()
