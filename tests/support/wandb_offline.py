"""Reads what an offline run of Weights & Biases has on the disk: protobuf records of its own in a LevelDB log."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_RECORD = struct.Struct("<IHB")
"""CRC, length, kind: 1 whole, 2 first, 3 middle, 4 last part of a record."""


def logged_runs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By run id, the rows of every offline run below `folder`, in the order of the runs; each with its `_step`."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        rows.setdefault(path.stem.removeprefix("run-"), []).extend(_history(path))
    return rows


def _history(path: Path) -> Iterator[dict[str, Any]]:
    from wandb.proto.wandb_internal_pb2 import Record

    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def _records(log: bytes) -> Iterator[bytes]:
    position, parts = _HEADER_BYTES, b""
    while position + _RECORD.size <= len(log):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _RECORD.size:  # the end of a block is padded
            position += left
            continue
        _, length, kind = _RECORD.unpack_from(log, position)
        position += _RECORD.size
        parts += log[position : position + length]
        position += length
        if kind in (1, 4):
            yield parts
            parts = b""
