"""The device pass and the loss on one device: agreement with the CPU, speed beside the teacher's prefill, memory.

    python benchmarks/device_pass.py                      # tiny, on the CPU
    python benchmarks/device_pass.py --device cuda --teacher-size 151936 --student-size 248320 --hidden 5120 \\
        --layers 4 --of-layers 64 --tokens 8192 --chunk-rows 256 --dtype bfloat16     # Qwen3-32B → Qwen3.5

- Agreement: LM head and pass on the device against the same weights, in float32, on the CPU. Products of bfloat16
  numbers are exact in float32, so bfloat16 weights may differ by the order of sums alone.
- Speed: rows/s of the pass with its LM head, and their share of a prefill of `--layers` decoder layers, scaled to
  `--of-layers`. The limit is memory bandwidth: how many times over the pass takes what one copy of its logits takes.
- Memory: peak beyond weights and tables, in chunks of logits and of folded rows.
- Loss: the same figures for the fused loss at the student's vocabulary.

Weights are random; times are medians of `--rounds`, after one that does not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from _loss_inputs import make_targets, peak_memory_bytes
from _synthetic_pair import SyntheticPair, make_pair
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge.targets import TargetRows
from tokbridge_teacher.backends.lm_head import LmHead
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import ChunkResult, marginalize
from tokbridge_trainer.head import lm_head
from tokbridge_trainer.loss import bpm_loss

CHECKED_ROWS = 64


@dataclass(frozen=True)
class Setting:
    """What is measured."""

    device: torch.device
    dtype: torch.dtype
    chunk_rows: int
    rounds: int

    def seconds(self, action: Callable[[], object]) -> float:
        """Median of the rounds."""
        action()
        return statistics.median(self._seconds(action) for _ in range(self.rounds))

    def _seconds(self, action: Callable[[], object]) -> float:
        self.wait()
        started = time.perf_counter()
        action()
        self.wait()
        return time.perf_counter() - started

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_bytes(self, action: Callable[[], object]) -> int:
        """Peak of device memory (CPU: of resident memory) beyond what was held before."""
        if self.device.type != "cuda":
            return peak_memory_bytes(action)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        action()
        self.wait()
        return torch.cuda.max_memory_allocated(self.device) - before


def make_teacher(
    teacher_size: int, hidden: int, layers: int, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """Dense decoder layers of the Qwen3 family, 128 a head, eight query heads a key head, under an untied LM head."""
    heads = max(1, hidden // 128)
    config = Qwen3Config(
        vocab_size=teacher_size,
        hidden_size=hidden,
        intermediate_size=5 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 8),
        head_dim=min(128, hidden),
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        lm_head(model).weight.data.normal_(0.0, 3.0 / hidden**0.5)  # logits of standard deviation 3
    return model.requires_grad_(False)


def make_hidden(model: PreTrainedModel, positions: int) -> torch.Tensor:
    """[P, h] hidden states as the last norm leaves them."""
    generator = torch.Generator().manual_seed(0)
    hidden_Ph = torch.randn(positions, model.config.hidden_size, generator=generator)
    return hidden_Ph.to(model.device, model.dtype)


def pass_chunks(
    head: LmHead, hidden_Ph: torch.Tensor, pair: SyntheticPair, tables: DeviceTables, chunk_rows: int
) -> list[ChunkResult]:
    """LM head and pass over all positions, as the backend does it."""
    starts = range(0, len(hidden_Ph), chunk_rows)
    bounds = [(start, min(start + chunk_rows, len(hidden_Ph))) for start in starts]
    return [marginalize(head(hidden_Ph[a:b]), pair.plan.slice(a, b), tables) for a, b in bounds]


def assembled(pair: SyntheticPair, results: list[ChunkResult]) -> TargetRows:
    """The rows that a client would get."""
    assembler = RowAssembler(pair.plan, pair.tables)
    return TargetRows.concatenate([assembler.add(result) for result in results])


@torch.inference_mode()
def report_agreement(model: PreTrainedModel, pair: SyntheticPair, setting: Setting) -> None:
    """Largest differences of emitted log-probabilities and of residuals from the CPU's float32."""
    hidden_Ph = make_hidden(model, pair.plan.num_positions)
    on_device = assembled(
        pair, pass_chunks(LmHead(model), hidden_Ph, pair, pair.tables.on_device(setting.device), setting.chunk_rows)
    )
    reference_model = make_reference(model)
    reference = assembled(
        pair,
        pass_chunks(LmHead(reference_model), hidden_Ph.float().cpu(), pair, pair.tables.on_device("cpu"), CHECKED_ROWS),
    )
    live = np.isfinite(reference.emitted_log_prob)
    nats = np.abs(on_device.emitted_log_prob - reference.emitted_log_prob)[live].max()
    residual = np.abs(on_device.residual - reference.residual).max()
    mass = np.abs(on_device.row_mass()[on_device.has_target()] - 1).max()
    print(f"agreement with float32 on the CPU over {len(live)} rows: {nats:.2g} nats, residual {residual:.2g}")
    print(f"largest distance of a row's mass from one: {mass:.2g}")


def make_reference(model: PreTrainedModel) -> PreTrainedModel:
    """The same LM head in float32 on the CPU, over no layers."""
    config = model.config
    reference = make_teacher(config.vocab_size, config.hidden_size, 1, torch.float32, torch.device("cpu"))
    lm_head(reference).weight.data.copy_(lm_head(model).weight.float().cpu())
    return reference


@torch.inference_mode()
def report_pass(model: PreTrainedModel, pair: SyntheticPair, setting: Setting, of_layers: int) -> None:
    """Times and memory of the pass."""
    positions, size = pair.plan.num_positions, pair.tables.teacher.size
    head, tables = LmHead(model), pair.tables.on_device(setting.device)
    hidden_Ph = make_hidden(model, positions)
    ids_1L = torch.randint(size, (1, positions), device=setting.device)
    layers = model.config.num_hidden_layers
    prefill_s = setting.seconds(lambda: model.get_decoder()(input_ids=ids_1L, use_cache=False)) * of_layers / layers
    chunk_Ph = hidden_Ph[: setting.chunk_rows]
    chunks = positions / len(chunk_Ph)
    head_s = setting.seconds(lambda: head(chunk_Ph)) * chunks
    both_s = setting.seconds(lambda: pass_chunks(head, hidden_Ph, pair, tables, setting.chunk_rows))
    logits_PV = head(chunk_Ph).clone()
    copy_s = setting.seconds(lambda: logits_PV.copy_(logits_PV.flip(0))) * chunks / 2  # two copies, one with a flip
    pass_s = both_s - head_s
    chunk_bytes = len(chunk_Ph) * 4 * (size + pair.tables.student.size)
    peak = setting.peak_bytes(lambda: pass_chunks(LmHead(model), hidden_Ph, pair, tables, setting.chunk_rows))
    print(f"{positions} positions: {of_layers} layers {prefill_s:.3f} s, head {head_s:.3f} s, pass {pass_s:.3f} s")
    print(f"rows/s of head and pass: {positions / both_s:,.0f}; all three: {positions / (prefill_s + both_s):,.0f}")
    print(f"share of a bare prefill with head: {(prefill_s + head_s) / (prefill_s + both_s):.3f}")
    print(
        f"pass / copy of its logits: {pass_s / copy_s:.1f}; copied at {2e-9 * positions * size * 4 / copy_s:,.0f} GB/s"
    )
    print(f"peak beyond the model: {peak / 1e6:,.0f} MB = {peak / chunk_bytes:.2f} × (logits + folded rows of a chunk)")


def report_loss(student_size: int, hidden: int, rows: int, setting: Setting) -> None:
    """Time and memory of the fused loss, head trained."""
    generator = torch.Generator().manual_seed(0)
    hidden_RH = torch.randn(rows, hidden, generator=generator).to(setting.device, setting.dtype).requires_grad_()
    weight_VH = torch.randn(student_size, hidden, generator=generator).mul_(3.0 / hidden**0.5)
    weight_VH = weight_VH.to(setting.device, setting.dtype).requires_grad_()
    targets = make_targets(rows, generator, student_size).to(setting.device)

    def step() -> None:
        hidden_RH.grad = weight_VH.grad = None
        bpm_loss(hidden_RH, weight_VH, targets, normalizer=rows).loss.backward()

    seconds = setting.seconds(step)
    hidden_RH.grad = weight_VH.grad = None
    peak = setting.peak_bytes(step)
    flops = 6.0 * rows * student_size * hidden
    print(f"loss of {rows} rows: {seconds:.3f} s, {rows / seconds:,.0f} rows/s, {flops / seconds / 1e12:.2f} TFLOP/s")
    print(f"peak beyond weights: {peak / 1e6:,.0f} MB; the head's gradient is {student_size * hidden * 4e-6:,.0f}")


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    sizes = {"teacher-size": 8_192, "student-size": 12_288, "hidden": 128, "student-hidden": 64, "layers": 2}
    runs = {"of-layers": 2, "tokens": 256, "chunk-rows": 64, "loss-rows": 256, "rounds": 3}
    for name, default in (sizes | runs).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    torch.backends.cuda.matmul.allow_tf32 = False
    setting = Setting(device, dtype, arguments.chunk_rows, arguments.rounds)
    print(f"{vars(arguments)}")
    model = make_teacher(arguments.teacher_size, arguments.hidden, arguments.layers, dtype, device)
    checked = make_pair(arguments.teacher_size, arguments.student_size, CHECKED_ROWS, mass=1.0)
    report_agreement(model, checked, setting)
    pair = make_pair(arguments.teacher_size, arguments.student_size, arguments.tokens)
    report_pass(model, pair, setting, arguments.of_layers)
    report_loss(arguments.student_size, arguments.student_hidden, arguments.loss_rows, setting)


if __name__ == "__main__":
    main()
