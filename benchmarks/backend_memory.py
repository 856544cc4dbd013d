"""Peak memory of scoring one long response, by rows of the LM-head chunk, against plain full logits.

A small random model with a head of Qwen3's size, in one process a setting, so that each starts fresh. Prints a table;
what counts are the ratios.

    python benchmarks/backend_memory.py [--tokens 2048] [--chunks 16 64 256 1024]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from _loss_inputs import peak_memory_bytes
from transformers import PreTrainedModel, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge.modes import Routing, Spanning
from tokbridge.targets import TargetRows
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.backends.base import ScoreJob
from tokbridge_teacher.backends.huggingface import BackendLimits, HuggingFaceBackend
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

VOCABULARY = 151_936
HIDDEN = 256
PROMPT_TOKENS = 64
FULL = "full"


def make_model() -> PreTrainedModel:
    """Two layers of hidden size 256 under a head of 151,936 rows, float32."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def score_by_chunks(model: PreTrainedModel, ids: np.ndarray, chunk_rows: int) -> None:
    """The service's way: targets on a student whose vocabulary is the teacher's; rows are dropped as they come."""
    vocabulary = ByteVocabulary(tuple(token.to_bytes(3, "big") for token in range(VOCABULARY)))
    tables = compile_pair(vocabulary, vocabulary, Routing.GREEDY, student_encoder=None, cache_folder=None)
    boundaries = np.arange(len(ids) + 1, dtype=np.int64) * 3
    plan = build_plan(
        tables,
        Segmentation(ids, boundaries, np.zeros(len(ids), bool)),
        ids,
        vocabulary.content_of(ids),
        teacher_stop_ids=[0],
        stop_id=None,
        turn_end_id=0,
        given_bytes=0,
        options=ScoringOptions(routing=Routing.GREEDY, spanning=Spanning.REALIZED, top_k=64, mass=0.999),
    )
    backend = HuggingFaceBackend(
        model, name="random", context_length=1 << 16, limits=BackendLimits(chunk_rows=chunk_rows, piece_tokens=512)
    )
    assembler = RowAssembler(plan, tables)
    job = ScoreJob(
        prompt_ids=ids[:PROMPT_TOKENS],
        plan=plan,
        tables=tables.on_device("cpu"),
        cancelled=lambda: False,
        emit=lambda chunk: _drop(assembler.add(chunk)),
        finish=lambda _: None,
        fail=print,
    )
    measured(lambda: backend.score([job]))


def score_with_full_logits(model: PreTrainedModel, ids: np.ndarray) -> None:
    """The plain way: one forward pass with all logits, then their log-softmax."""
    ids_1L = torch.from_numpy(np.concatenate([ids[:PROMPT_TOKENS], ids]).astype(np.int64))[None]

    @torch.inference_mode()
    def run() -> None:
        torch.log_softmax(model(input_ids=ids_1L, use_cache=False).logits[0, PROMPT_TOKENS - 1 :], -1)

    measured(run)


def _drop(rows: TargetRows) -> None:
    """A reader that keeps nothing."""


def measured(action: Callable[[], object]) -> None:
    """Print peak bytes and seconds of `action`."""
    started = time.perf_counter()
    peak = peak_memory_bytes(action)
    print(f"{peak} {time.perf_counter() - started:.3f}")


def run_setting(setting: str, tokens: int) -> None:
    """Measure one setting in this process."""
    ids = np.random.default_rng(0).integers(1, VOCABULARY, size=tokens).astype(np.int32)
    model = make_model()
    if setting == FULL:
        score_with_full_logits(model, ids)
    else:
        score_by_chunks(model, ids, int(setting))


def main() -> None:
    """Run every setting in a process of its own and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--chunks", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--setting", help="measure this one only, in this process")
    arguments = parser.parse_args()
    if arguments.setting:
        run_setting(arguments.setting, arguments.tokens)
        return
    results: dict[str, tuple[float, float]] = {}
    for setting in (FULL, *map(str, arguments.chunks)):
        command = [sys.executable, __file__, "--setting", setting, "--tokens", str(arguments.tokens)]
        peak, seconds = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-2:]
        results[setting] = (float(peak), float(seconds))
    full_peak, full_seconds = results[FULL]
    print(f"{arguments.tokens} response tokens, {VOCABULARY} rows of the head, float32")
    print(f"{'chunk rows':>12} {'peak MB':>9} {'full/peak':>9} {'seconds':>8} {'of full':>8}")
    for setting, (peak, seconds) in results.items():
        ratio, share = full_peak / peak, seconds / full_seconds
        print(f"{setting:>12} {peak / 1e6:9.0f} {ratio:9.1f} {seconds:8.1f} {share:8.2f}")


if __name__ == "__main__":
    main()
