"""A vLLM backend beside the transformers backend on one model, and how far their rows are apart."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from support.backend_bench import Bench, Recorder
from support.cpu_stand_ins import add_cpu_stand_ins
from tokbridge.targets import TargetRows
from tokbridge_teacher.backends.vllm.environment import prepare_environment
from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions

CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
"""Small: a gigabyte of keys and values."""
WORKER = WorkerOptions(chunk_rows=48, max_chunk_bytes=1 << 28, max_student_size=1000, max_cells=600)
STEP_TOKENS = 128
BLOCK_TOKENS = 128
"""Of the prefix cache, on a CPU."""


@contextmanager
def running_backend(folder: Path, *, dtype: str = "float32", ranks: int = 1, **arguments: Any) -> Iterator[Any]:
    """A backend whose engine takes `arguments` beside its own; ended with the block."""
    os.environ.update(CPU_ENVIRONMENT)
    add_cpu_stand_ins()
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(ranks))
    prepare_environment()
    from tokbridge_teacher.backends.vllm.backend import VllmBackend
    from tokbridge_teacher.backends.vllm.engine import Engine
    from tokbridge_teacher.backends.vllm.engine_config import VllmSettings, engine_arguments
    from tokbridge_teacher.backends.vllm.loading import architecture_of

    settings = VllmSettings(
        str(folder), WORKER, dtype=dtype, step_tokens=STEP_TOKENS, tensor_parallel_size=ranks, eager=True
    )
    architecture = architecture_of(settings)
    backend = VllmBackend(lambda: Engine(engine_arguments(settings) | arguments, architecture), "tiny")
    try:
        yield backend
    finally:
        backend.close()


def rows_of(recorder: Recorder) -> TargetRows:
    """All rows of a job that was scored."""
    assert recorder.errors == []
    parts = [recorder.assembler.add(chunk) for chunk in recorder.chunks]
    recorder.assembler.finish()
    return TargetRows.concatenate([part for part in parts if part.num_rows])


def probabilities(rows: TargetRows, columns: int) -> np.ndarray:
    """[R, columns], every cell in its place."""
    dense = np.zeros((rows.num_rows, columns))
    owners = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_offsets))
    np.add.at(dense, (owners, rows.cell_ids), np.exp(rows.cell_log_probs.astype(np.float64)))
    return dense


def largest_difference(left: TargetRows, right: TargetRows, columns: int) -> float:
    """Of a probability of a cell, a residual, or the log-prob of an emitted token."""
    assert left.cases.tolist() == right.cases.tolist()
    cells = np.abs(probabilities(left, columns) - probabilities(right, columns))
    residual = np.abs(left.residual - right.residual)
    emitted = np.abs(np.nan_to_num(left.emitted_log_prob) - np.nan_to_num(right.emitted_log_prob))
    return float(max(cells.max(), residual.max(), emitted.max()))


def responses(bench: Bench) -> list[Recorder]:
    """Responses of many lengths, some longer than several steps, with prompts of their own and shared ones."""
    long_prompt = b"a prompt that fills more than a block of the cache. " * 12
    texts = (
        b"The quick brown fox",
        b"six times seven is forty-two. " * 30,
        b"",
        b"12, 345 and \xf0\x9f\x99\x82",
        b"def add(",
    )
    prompts = (b"one prompt for all of them", long_prompt, long_prompt + b"and more", b"x")
    return [bench.recorder(prompt, text) for prompt in prompts for text in texts]


def scored_by(backend: Any, recorders: Sequence[Recorder]) -> list[TargetRows]:
    """Rows of all, run together."""
    backend.score([recorder.job for recorder in recorders])
    return [rows_of(recorder) for recorder in recorders]


def apart(bench: Bench, backend: Any) -> float:
    """Largest difference between the rows of a backend and those of the transformers backend."""
    expected = scored_by(bench.backend(), responses(bench))
    got = scored_by(backend, responses(bench))
    columns = bench.profile.vocabulary.size
    return max(largest_difference(*pair, columns) for pair in zip(expected, got, strict=True))


def typical_difference(bench: Bench, backend: Any) -> float:
    """Median, in nats, of the log-probs of emitted tokens from those of one plain forward pass by transformers."""
    recorders = responses(bench)
    backend.score([recorder.job for recorder in recorders])
    off = [recorder.emitted_log_probs() - bench.reference(recorder) for recorder in recorders]
    return float(np.median(np.abs(np.concatenate(off))))
