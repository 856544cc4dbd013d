"""Tokens per second of one rollout worker on transformers and on vLLM, the same student, prompts and sampling.

    .venv-vllm/bin/python benchmarks/rollouts.py [--responses 64] [--tokens 96] [--rounds 3]

The student is a random Qwen3 of about 20 million parameters with a small vocabulary; its weights seldom stop, so nearly
every response runs to its cap. Rounds alternate between the two workers,
and the ratio is that of the medians. Needs an environment with vLLM (`make install-vllm`); without it `make bench`
passes this file over.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoConfig, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.tiny_models import TINY_STUDENT, save_tiny_model
from support.training import make_config
from support.weights import own_model
from tokbridge_trainer.checkpoint_names import CheckpointNames, snapshot_checkpoint
from tokbridge_trainer.rollout.tasks import RolloutTask
from tokbridge_trainer.rollout.worker import RolloutWorker
from tokbridge_trainer.samples import SampleKey
from tokbridge_trainer.student import compute_dtype
from tokbridge_trainer.student_text import load_student_text
from tokbridge_trainer.weights import snapshot_weights

SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "layer_types": None,
}


def make_student(folder: Path) -> Path:
    """A tiny student's tokenizer with a larger random body."""
    save_tiny_model(TINY_STUDENT, folder)
    config = Qwen3Config(**(AutoConfig.from_pretrained(folder).to_dict() | SIZES))
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("rollouts: vLLM is not installed here; nothing measured", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(make_student(Path(folder) / "student"), arguments)


def measure(student: Path, arguments: argparse.Namespace) -> None:
    """Both workers in turns."""
    rates: dict[str, list[float]] = {"transformers": [], "vllm": []}
    configs = {
        backend: make_config(
            student,
            dtype=arguments.dtype,
            max_response_tokens=arguments.tokens,
            rollout={"backend": backend, "vllm": {"engine_args": {"kv_cache_memory_bytes": 1 << 30}}},
        )
        for backend in rates
    }
    text = load_student_text(configs["vllm"])
    profile = text.profile
    workers = {
        backend: RolloutWorker(config, profile.vocabulary, profile.stop_ids, lambda sample: None)
        for backend, config in configs.items()
    }
    model, names = own_model(configs["vllm"]), CheckpointNames(str(student))
    dtype = compute_dtype(configs["vllm"])
    workers["transformers"].set_weights(snapshot_weights(model, 0, dtype))
    workers["vllm"].set_weights(snapshot_checkpoint(model, names, 0, dtype))
    prompts = [text.prompt(i, [{"role": "user", "content": f"question {i}"}], None) for i in range(arguments.responses)]
    for step in range(arguments.rounds + 1):
        tasks = [RolloutTask(SampleKey(step, prompt.index, 0), prompt) for prompt in prompts]
        for backend, worker in workers.items():
            report = worker.write(tasks)
            if step:  # the first round warms up
                rates[backend].append(report.num_tokens / report.seconds)
    medians = {backend: statistics.median(values) for backend, values in rates.items()}
    for backend, values in rates.items():
        print(f"{backend:<14}{medians[backend]:>9.0f} tokens/s   (rounds: {', '.join(f'{v:.0f}' for v in values)})")
    print(f"{'ratio':<14}{medians['vllm'] / medians['transformers']:>9.2f}")


if __name__ == "__main__":
    main()
