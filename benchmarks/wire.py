"""Bytes a row and time to encode and decode: the wire form beside two others, on the same rows.

Compared are raw uint32 + float16 arrays without any accounting, and JSON with padded base64 arrays (as TRL's server
sends top-k log-probs). Rows are random with the shape of language-model targets: most are sharp, some are flat.

    python benchmarks/wire.py [--rows 27648] [--top-k 64] [--mass 0.999]
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tokbridge.targets import TargetRows, offsets_of
from tokbridge.v1 import teacher_pb2
from tokbridge.wire import checksum, decode_rows, encode_rows

VOCABULARY_SIZE = 248_077


@dataclass(frozen=True)
class Format:
    """One way to send the rows."""

    name: str
    encode: Callable[[TargetRows], bytes]
    decode: Callable[[bytes], Any]


def make_rows(num_rows: int, top_k: int, mass: float) -> TargetRows:
    """Softmaxes of random sharpness, cut to the covered mass; mass 1 keeps all `top_k` cells."""
    rng = np.random.default_rng(0)
    logits = -np.sort(-rng.gumbel(size=(num_rows, top_k)) * rng.gamma(4.0, 1.5, (num_rows, 1)), axis=1)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs *= (1 - 1e-4) / probs.sum(axis=1, keepdims=True)
    before = np.cumsum(probs, axis=1) - probs
    kept = (before < mass * (1 - 1e-4)) | (mass >= 1)
    cell_ids = rng.integers(VOCABULARY_SIZE, size=kept.sum())
    truncated = 1.0 - np.where(kept, probs, 0).sum(axis=1)
    zeros = np.zeros(num_rows, np.float32)
    return TargetRows(
        first_row=0,
        cases=np.zeros(num_rows, np.uint8),
        flags=np.zeros(num_rows, np.uint8),
        row_offsets=offsets_of(kept.sum(axis=1)),
        cell_ids=cell_ids.astype(np.int32),
        cell_log_probs=np.log(probs[kept]).astype(np.float32),
        residual_unmapped=zeros,
        residual_control=zeros,
        residual_truncated=truncated.astype(np.float32),
        emitted_log_prob=zeros,
    )


def _encode_wire(rows: TargetRows) -> bytes:
    message = encode_rows(rows)
    checksum(message)
    return message.SerializeToString()


def _decode_wire(payload: bytes) -> TargetRows:
    message = teacher_pb2.Rows.FromString(payload)
    checksum(message)
    return decode_rows(message, vocabulary_size=VOCABULARY_SIZE)


def _encode_raw(rows: TargetRows) -> bytes:
    counts = np.diff(rows.row_offsets).astype("<u2").tobytes()
    return counts + rows.cell_ids.astype("<u4").tobytes() + rows.cell_log_probs.astype("<f2").tobytes()


def _decode_raw(num_rows: int) -> Callable[[bytes], Any]:
    def decode(payload: bytes) -> Any:
        counts = np.frombuffer(payload, "<u2", num_rows)
        num_cells = int(counts.sum(dtype=np.int64))
        ids = np.frombuffer(payload, "<u4", num_cells, 2 * num_rows)
        return ids, np.frombuffer(payload, "<f2", num_cells, 2 * num_rows + 4 * num_cells).astype(np.float32)

    return decode


def _padded(rows: TargetRows, values: np.ndarray, top_k: int, fill: float, dtype: str) -> np.ndarray:
    counts = np.diff(rows.row_offsets)
    padded = np.full((rows.num_rows, top_k), fill, dtype)
    padded[np.arange(top_k) < counts[:, None]] = values
    return padded


def _encode_json(top_k: int) -> Callable[[TargetRows], bytes]:
    def encode(rows: TargetRows) -> bytes:
        arrays = {
            "logprob_token_ids": _padded(rows, rows.cell_ids, top_k, -1, "<i4"),
            "logprobs": _padded(rows, rows.cell_log_probs, top_k, -np.inf, "<f4"),
        }
        packed = {name: base64.b64encode(array.tobytes()).decode() for name, array in arrays.items()}
        return json.dumps(packed | {"shape": [rows.num_rows, top_k]}).encode()

    return encode


def _decode_json(payload: bytes) -> Any:
    body = json.loads(payload)
    ids = np.frombuffer(base64.b64decode(body["logprob_token_ids"]), "<i4").reshape(body["shape"])
    return ids, np.frombuffer(base64.b64decode(body["logprobs"]), "<f4").reshape(body["shape"])


def _best_ms(action: Callable[[], object], repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def report(rows: TargetRows, top_k: int, title: str) -> Table:
    """One table: every format on `rows`, with ratios to the wire form."""
    formats = [
        Format("tokbridge Rows (checked, scaled)", _encode_wire, _decode_wire),
        Format("raw u32 + f16, no accounting", _encode_raw, _decode_raw(rows.num_rows)),
        Format("JSON, base64, padded (TRL style)", _encode_json(top_k), _decode_json),
    ]
    table = Table("format", "bytes/row", "ratio", "encode ms", "decode ms", "ratio of both", title=title)
    reference: tuple[float, float] | None = None
    for entry in formats:
        payload = entry.encode(rows)
        size = len(payload) / rows.num_rows
        encode_ms = _best_ms(lambda entry=entry: entry.encode(rows))
        decode_ms = _best_ms(lambda entry=entry, payload=payload: entry.decode(payload))
        reference = reference or (size, encode_ms + decode_ms)
        ratios = f"{size / reference[0]:.2f}", f"{(encode_ms + decode_ms) / reference[1]:.2f}"
        table.add_row(entry.name, f"{size:.1f}", ratios[0], f"{encode_ms:.1f}", f"{decode_ms:.1f}", ratios[1])
    return table


def main() -> None:
    """Print both tables: all of top-k, and cut to the covered mass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=27_648)
    parser.add_argument("--top-k", type=int, default=64)
    parser.add_argument("--mass", type=float, default=0.999)
    options = parser.parse_args()
    console = Console()
    for mass, label in ((1.0, "all cells"), (options.mass, f"covered mass {options.mass}")):
        rows = make_rows(options.rows, options.top_k, mass)
        cells = len(rows.cell_ids) / rows.num_rows
        title = f"{options.rows} rows, top-{options.top_k}, {label}: {cells:.1f} cells a row"
        console.print(report(rows, options.top_k, title))


if __name__ == "__main__":
    main()
