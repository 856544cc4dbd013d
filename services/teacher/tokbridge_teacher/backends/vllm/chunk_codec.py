"""Chunk results as bytes: what leaves a worker, some hundred bytes a row."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from tokbridge_teacher.backends.vllm.array_codec import Arrays, indices, pack_arrays, unpack_arrays
from tokbridge_teacher.targets.marginal import ChunkResult
from tokbridge_teacher.targets.row_block import RowBlock


def encode_chunk(chunk: ChunkResult) -> bytes:
    """One chunk."""
    arrays: Arrays = {f"block.{field.name}": getattr(chunk.block, field.name) for field in fields(RowBlock)}
    arrays |= {
        "span": np.array([chunk.start, chunk.stop]),
        "realized_log_probs": chunk.realized_log_probs,
        "query_numbers": chunk.query_numbers,
        "query_log_masses": chunk.query_log_masses,
        "stop_log_prob": np.array([] if chunk.stop_log_prob is None else [chunk.stop_log_prob], np.float64),
        "top_ids": chunk.top_ids,
        "top_probs": chunk.top_probs,
    }
    return pack_arrays(arrays)


def decode_chunk(data: bytes) -> ChunkResult:
    """The chunk of `encode_chunk`."""
    arrays = unpack_arrays(data)
    start, stop = arrays["span"].tolist()
    stop_log_probs = arrays["stop_log_prob"].tolist()
    block = {field.name: arrays[f"block.{field.name}"] for field in fields(RowBlock)}
    block |= {name: indices(block[name]) for name in ("rows", "support_numbers")}
    return ChunkResult(
        start=start,
        stop=stop,
        block=RowBlock(**block),
        realized_log_probs=arrays["realized_log_probs"].astype(np.float64),
        query_numbers=indices(arrays["query_numbers"]),
        query_log_masses=arrays["query_log_masses"].astype(np.float64),
        stop_log_prob=stop_log_probs[0] if stop_log_probs else None,
        top_ids=arrays["top_ids"].astype(np.int32),
        top_probs=arrays["top_probs"].astype(np.float32),
    )
