"""Target rows to and from their wire form, the `Rows` message (spec §6).

A cell takes four bytes (`cell_code`). The residual is float32, and the decoder scales the cells so that a row sums to
one. The module knows nothing of sockets; it trusts no message.

Axes: R rows, C cells of all rows.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tokbridge.cell_code import (
    CELL,
    LEAST_ID_BITS,
    MOST_ID_BITS,
    id_bits_for,
    pack_cells,
    relative_rounding,
    unpack_cells,
)
from tokbridge.errors import CorruptStreamError, LimitExceededError
from tokbridge.targets import RowCase, TargetRows, offsets_of, row_sums
from tokbridge.v1 import teacher_pb2

MAX_CELLS_PER_ROW = 2**16 - 1
"""A row's cell count travels as uint16."""

_MASS_SLACK = 4e-6
_MASS_TOLERANCE = 1e-5

_ROW_FIELDS = {
    "cases": np.dtype("u1"),
    "flags": np.dtype("u1"),
    "residual_unmapped": np.dtype("<f4"),
    "residual_control": np.dtype("<f4"),
    "residual_truncated": np.dtype("<f4"),
    "emitted_log_prob": np.dtype("<f4"),
}
_CELL_COUNTS = np.dtype("<u2")
# In order of field number, which is the order of the checksum.
_ARRAY_FIELDS = [field.name for field in teacher_pb2.Rows.DESCRIPTOR.fields if field.type == field.TYPE_BYTES]


def encode_rows(rows: TargetRows) -> teacher_pb2.Rows:
    """Pack rows: 20 bytes a row and 4 a cell.

    Raises:
        LimitExceededError: a row holds more cells than the format can count, or an id needs too many bits.
    """
    cell_counts = np.diff(rows.row_offsets)
    most = int(cell_counts.max(initial=0))
    if most > MAX_CELLS_PER_ROW:
        raise LimitExceededError(
            f"a row of {most} cells does not fit the wire; lower top_k to {MAX_CELLS_PER_ROW} or less",
            name="cells_per_row",
            value=most,
            limit=MAX_CELLS_PER_ROW,
        )
    largest_id = int(rows.cell_ids.max(initial=0))
    id_bits = id_bits_for(largest_id)
    if id_bits > MOST_ID_BITS:
        raise LimitExceededError(
            f"token id {largest_id} does not fit the wire; ids must be below {2**MOST_ID_BITS}",
            name="token_id",
            value=largest_id,
            limit=2**MOST_ID_BITS - 1,
        )
    return teacher_pb2.Rows(
        first_row=rows.first_row,
        cell_counts=cell_counts.astype(_CELL_COUNTS).tobytes(),
        cell_id_bits=id_bits,
        cells=pack_cells(rows.cell_ids, rows.cell_log_probs, id_bits).astype(CELL, copy=False).tobytes(),
        **{name: getattr(rows, name).astype(dtype, copy=False).tobytes() for name, dtype in _ROW_FIELDS.items()},
    )


def decode_rows(message: teacher_pb2.Rows, *, vocabulary_size: int | None = None) -> TargetRows:
    """Unpack rows; arrays of rows are read-only views of the message, offsets and cells are new.

    Args:
        message: what a teacher sent.
        vocabulary_size: rows of the student's LM head, if known; cell ids must be below it.

    Raises:
        CorruptStreamError: array lengths disagree, a value is out of its range, or a row does not sum to one.
    """
    num_rows = len(message.cases)
    row_arrays = {name: _read(message, name, dtype, num_rows) for name, dtype in _ROW_FIELDS.items()}
    row_offsets = offsets_of(_read(message, "cell_counts", _CELL_COUNTS, num_rows))
    id_bits = message.cell_id_bits
    if not LEAST_ID_BITS <= id_bits <= MOST_ID_BITS:
        raise CorruptStreamError(f"rows from {message.first_row}: ids of {id_bits} bits", field="cell_id_bits")
    cell_ids, cell_log_probs = unpack_cells(_read(message, "cells", CELL, int(row_offsets[-1])), id_bits)
    rows = TargetRows(
        first_row=message.first_row,
        row_offsets=row_offsets,
        cell_ids=cell_ids,
        cell_log_probs=cell_log_probs,
        **row_arrays,
    )
    _check_values(rows, vocabulary_size)
    return _scaled(rows, id_bits)


def checksum(message: teacher_pb2.Rows, previous: int = 0) -> int:
    """CRC-32 over the array fields in order of field number, continued from `previous`, the one of the rows before."""
    for name in _ARRAY_FIELDS:
        previous = crc32(getattr(message, name), previous)
    return previous


def _read(message: teacher_pb2.Rows, name: str, dtype: np.dtype, length: int) -> NDArray:
    payload: bytes = getattr(message, name)
    if len(payload) != length * dtype.itemsize:
        raise CorruptStreamError(
            f"rows from {message.first_row}: `{name}` has {len(payload)} bytes where {length * dtype.itemsize} belong",
            field=name,
        )
    return np.frombuffer(payload, dtype)


def _check_values(rows: TargetRows, vocabulary_size: int | None) -> None:
    cell_counts = np.diff(rows.row_offsets)
    has_target = rows.has_target()
    _require(rows, "cases", bool((rows.cases <= max(RowCase)).all()))
    _require(rows, "cell_counts", not cell_counts[~has_target].any())
    _require(rows, "cell_counts", bool((cell_counts[rows.cases == RowCase.STOP] == 1).all()))
    if vocabulary_size is not None:
        _require(rows, "cells", bool((rows.cell_ids < vocabulary_size).all()))
    _require(rows, "emitted_log_prob", bool((np.isnan(rows.emitted_log_prob) == ~has_target).all()))
    for name in ("residual_unmapped", "residual_control", "residual_truncated"):
        _require(rows, name, bool((getattr(rows, name) >= 0).all()))


def _require(rows: TargetRows, field: str, holds: bool) -> None:
    if not holds:
        raise CorruptStreamError(f"rows from {rows.first_row}: a value of `{field}` is out of its range", field=field)


def _scaled(rows: TargetRows, id_bits: int) -> TargetRows:
    """Scale the cells of every row with a target so that they sum to 1 − ∅.

    The scale stays within what rounding the cells explains. Where ∅ is nearly all of a row, its own rounding would
    otherwise decide cells it says nothing about (a stop of mass 1e-12 beside a residual that rounds to 1).
    """
    log_probs = rows.cell_log_probs.astype(np.float64)
    cell_mass = row_sums(np.exp(log_probs), rows.row_offsets)
    cell_counts = np.diff(rows.row_offsets)
    positive = cell_mass > 0
    # No n cells of sum S have more Σ p·|ln p| than equal ones, and so none are rounded by more.
    log_share = np.log(np.divide(cell_counts, cell_mass, out=np.ones_like(cell_mass), where=positive))
    slack = cell_mass * (relative_rounding(log_share.clip(min=0.0), id_bits) + _MASS_SLACK)
    residual = rows.residual.astype(np.float64)
    mass = np.clip(1.0 - residual, cell_mass - slack, cell_mass + slack)
    if not (np.abs(mass + residual - rows.has_target()) <= _MASS_TOLERANCE).all():
        raise CorruptStreamError(f"rows from {rows.first_row}: a row does not sum to one", field="cells")
    log_scale = np.log(np.divide(mass, cell_mass, out=np.ones_like(mass), where=positive))
    log_probs += np.repeat(log_scale, cell_counts)
    np.minimum(log_probs, 0.0, out=log_probs)
    return replace(rows, cell_log_probs=log_probs.astype(np.float32))
