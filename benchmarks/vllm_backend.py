"""Rows a second of the backend on vLLM, beside vLLM's own ways to the same numbers and the prefill without any of them.

A random Qwen3 model with a head of 151,936 rows and a body that outweighs it, float32. Each way alternates, within one
engine, with the bare prefill of the same tokens; what counts is its share of that. `prompt_logprobs` needs an engine
that generates, so there are two, one after the other. Wants .venv-vllm and a quiet machine; in a process with another
environment it says so.

    .venv-vllm/bin/python benchmarks/vllm_backend.py [--layers 40] [--tokens 512] [--repeats 3]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge_teacher.backends.vllm.environment import prepare_environment

VOCABULARY = 151_936
TOP_K = 64
CHUNK_ROWS = 256
FULL_TOKENS = 48
"""`prompt_logprobs` of the whole vocabulary takes minutes for more."""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}

Ways = dict[str, tuple[int, Callable[[], object], Callable[[], object]]]
"""By name: rows, the way itself, and the bare prefill of the same tokens."""


def save_model(folder: Path, arguments: argparse.Namespace) -> int:
    """Write the model; its parameters beside embedding and head."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=arguments.hidden,
        intermediate_size=arguments.intermediate,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden // 64,
        num_key_value_heads=arguments.hidden // 64,
        head_dim=64,
        max_position_embeddings=2 * arguments.tokens,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.get_decoder().parameters()) - VOCABULARY * arguments.hidden


def targets_way(folder: Path, token_ids: np.ndarray) -> tuple[Ways, Callable[[], None]]:
    """This repository's: rows of a teacher that is its own student."""
    from tokbridge_teacher.backends.vllm.engine_config import VllmSettings
    from tokbridge_teacher.backends.vllm.largest_pass import largest_tables, plain_plan
    from tokbridge_teacher.backends.vllm.loading import load_vllm
    from tokbridge_teacher.backends.vllm.plan_codec import encode_plan, encode_tables
    from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions
    from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest

    worker = WorkerOptions(CHUNK_ROWS, 4 << 30, VOCABULARY, TOP_K + 1)
    backend = load_vllm(VllmSettings(str(folder), worker, dtype="float32", step_tokens=len(token_ids) * 2, eager=True))
    engine = backend.engine
    engine.call_workers("tokbridge_put_tables", "own", encode_tables(largest_tables(VOCABULARY, VOCABULARY)))

    def score(content: np.ndarray) -> None:
        plan = encode_plan(plain_plan(content, TOP_K + 1))
        request = WorkerRequest("own", len(token_ids) - 1 - len(content), CHUNK_ROWS, plan)
        engine.submit(token_ids, request.to_extra(), read_cache=False).result()

    rows = len(token_ids) - 1
    ways: Ways = {"targets, in the worker": (rows, lambda: score(token_ids[1:]), lambda: score(token_ids[:0]))}
    return ways, backend.close


def prompt_logprobs_ways(folder: Path, token_ids: np.ndarray) -> tuple[Ways, Callable[[], None]]:
    """vLLM's own: top-k, and the whole vocabulary of a shorter response."""
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_num_batched_tokens=len(token_ids) * 2,
        max_logprobs=-1,
        enable_prefix_caching=False,
    )

    def generate(tokens: int, prompt_logprobs: int | None) -> None:
        params = SamplingParams(max_tokens=1, prompt_logprobs=prompt_logprobs, detokenize=False)
        engine.generate({"prompt_token_ids": token_ids[:tokens].tolist()}, params, use_tqdm=False)

    rows = len(token_ids) - 1
    ways: Ways = {
        f"prompt_logprobs={TOP_K}": (rows, lambda: generate(rows + 1, TOP_K), lambda: generate(rows + 1, None)),
        "prompt_logprobs=-1": (
            FULL_TOKENS - 1,
            lambda: generate(FULL_TOKENS, -1),
            lambda: generate(FULL_TOKENS, None),
        ),
    }
    return ways, lambda: None


PARTS = {"targets": targets_way, "prompt_logprobs": prompt_logprobs_ways}


def measure_part(part: str, folder: Path, tokens: int, repeats: int) -> dict[str, dict[str, float]]:
    """Rows a second of every way of a part, and its share of the bare prefill, alternating."""
    token_ids = np.random.default_rng(0).integers(0, VOCABULARY, tokens)
    ways, close = PARTS[part](folder, token_ids)
    found: dict[str, dict[str, float]] = {}
    for name, (rows, way, bare) in ways.items():
        bare()  # warm
        pairs = [(_seconds(way), _seconds(bare)) for _ in range(repeats if rows >= FULL_TOKENS else 1)]
        found[name] = {
            "rows": rows,
            "rows_a_second": rows / statistics.median(own for own, _ in pairs),
            "bare_rows_a_second": rows / statistics.median(prefill for _, prefill in pairs),
            "share": statistics.median(prefill / own for own, prefill in pairs),
        }
    close()
    return found


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--intermediate", type=int, default=16_384)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, help="measure this one only, in this process")
    parser.add_argument("--folder", type=Path, help="of the model, for --part")
    return parser.parse_args()


def run_parts(arguments: argparse.Namespace) -> None:
    """Make the model, run each part in a process of its own, print the table."""
    with tempfile.TemporaryDirectory() as folder:
        body = save_model(Path(folder), arguments)
        head = VOCABULARY * arguments.hidden
        print(
            f"body {body / 1e6:.0f} M parameters, head {VOCABULARY} × {arguments.hidden} ({head / 1e6:.0f} M), float32"
        )
        print(f"a head over every row costs {head / body:.1%} of the body's arithmetic")
        print(f"{'way':<26} {'rows':>5} {'rows/s':>8} {'bare prefill':>13} {'share':>6}")
        for part in PARTS:
            sizes = ["--tokens", str(arguments.tokens), "--repeats", str(arguments.repeats)]
            command = [sys.executable, __file__, "--part", part, "--folder", folder, *sizes]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            for name, row in json.loads(output.splitlines()[-1]).items():
                print(_line(name, row))


def _line(name: str, row: dict[str, Any]) -> str:
    speeds = f"{row['rows_a_second']:8.1f} {row['bare_rows_a_second']:13.1f}"
    return f"{name:<26} {row['rows']:5.0f} {speeds} {row['share']:6.2f}"


def main() -> None:
    """Run everything, or one part of it."""
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here: .venv-vllm/bin/python benchmarks/vllm_backend.py")
        return
    arguments = parse()
    os.environ.update(ENVIRONMENT)
    prepare_environment()
    if arguments.part:
        print(json.dumps(measure_part(arguments.part, arguments.folder, arguments.tokens, arguments.repeats)))
    else:
        run_parts(arguments)


if __name__ == "__main__":
    main()
