"""Configurations and samples for tests of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from support.random_rows import random_rows
from tokbridge.results import ScoreResult, Timings
from tokbridge.targets import RowCase, TargetRows
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import parse_config
from tokbridge_trainer.samples import Prompt, Sample, SampleKey, ScoredSample


def make_config(model: Path | str = "student", **values: Any) -> TrainConfig:
    """A small float32 configuration; `values` replace or add top-level keys."""
    document: dict[str, Any] = {
        "output_dir": "run",
        "student": {"model": str(model)},
        "prompts": {"files": ["prompts.jsonl"]},
        "teacher": {"urls": ["localhost:1"]},
        "steps": 3,
        "prompts_per_step": 2,
        "max_prompt_tokens": 200,
        "max_response_tokens": 12,
        "max_policy_lag": 0,
        "dtype": "float32",
        "device": "cpu",
        "optimizer": {"lr": 1e-3},
        "log": {"tensorboard": False, "progress": False},
        "ray": {"threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5},
    }
    return parse_config(document | values)


def make_prompt(ids: list[int], index: int = 0) -> Prompt:
    """A prompt of given ids."""
    return Prompt(index, [{"role": "user", "content": f"prompt {index}"}], None, np.array(ids, np.int32), "")


def make_sample(
    prompt_ids: list[int], token_ids: list[int], stop_id: int | None = None, key: SampleKey | None = None
) -> Sample:
    """A sample of given ids; its bytes do not matter to the learner."""
    key = key or SampleKey(0, 0, 0)
    prompt = make_prompt(prompt_ids, key.prompt_index)
    return Sample(key, prompt, 0, np.array(token_ids, np.int32), b"x" * len(token_ids), stop_id)


def score(sample: Sample, rows: TargetRows, **facts: Any) -> ScoredSample:
    """The sample with these rows."""
    values: dict[str, Any] = {
        "cases": {},
        "seam": "none",
        "notes": (),
        "prompt_tokens": 1,
        "shared_prompt_tokens": 0,
        "content_tokens": len(sample.token_ids),
        "content_log_prob": -1.0,
        "stop_log_prob": -1.0,
        "scored_bytes": len(sample.response),
        "timings": Timings(),
        "attempts": 1,
        "retries": {},
    }
    return ScoredSample(sample, ScoreResult(rows=rows, **(values | facts)))


def random_scored(rng: np.random.Generator, vocabulary_size: int, key: SampleKey, *, stop_id: int) -> ScoredSample:
    """A sample of random ids and random targets of every case; stopped or cut by chance."""
    prompt_ids = rng.integers(0, vocabulary_size, rng.integers(1, 9)).tolist()
    token_ids = rng.integers(0, vocabulary_size, rng.integers(1, 12)).tolist()
    sample = make_sample(prompt_ids, token_ids, stop_id if rng.random() < 0.5 else None, key)
    rows = random_rows(rng, len(token_ids), vocabulary_size=vocabulary_size)
    cases = np.where(rows.cases == RowCase.STOP, RowCase.ALIGNED, rows.cases).astype(np.uint8)
    parts = [TargetRows(**(vars(rows) | {"cases": cases}))]
    if sample.stop_id is not None:
        parts.append(_stop_row(sample.stop_id, len(token_ids), rng.random()))
    return score(sample, TargetRows.concatenate(parts))


def _stop_row(stop_id: int, row: int, mass: float) -> TargetRows:
    return TargetRows(
        first_row=row,
        cases=np.array([RowCase.STOP], np.uint8),
        flags=np.zeros(1, np.uint8),
        row_offsets=np.array([0, 1]),
        cell_ids=np.array([stop_id], np.int32),
        cell_log_probs=np.log(np.array([mass], np.float32)),
        residual_unmapped=np.zeros(1, np.float32),
        residual_control=np.array([1 - mass], np.float32),
        residual_truncated=np.zeros(1, np.float32),
        emitted_log_prob=np.log(np.array([mass], np.float32)),
    )
