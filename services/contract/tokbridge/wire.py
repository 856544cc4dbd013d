"""Target rows to and from their wire form, the `Rows` message (spec §6).

A cell is its id and its log-probability in float16: a probability near 1 keeps its precision there, which float16 of
the probability itself would lose. The residual is float32, and the decoder scales the cells so that a row sums to one.
The module knows nothing of sockets; it trusts no message.

Axes: R rows, C cells of all rows.
"""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import CorruptStreamError, LimitExceededError
from tokbridge.targets import RowCase, TargetRows, offsets_of, row_sums
from tokbridge.v1 import teacher_pb2

MAX_CELLS_PER_ROW = 2**16 - 1
"""A row's cell count travels as uint16."""

_FLOAT16_LOWEST = float(np.finfo(np.float16).min)
_FLOAT16_ROUNDING = 2.0**-11
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
_CELL_IDS = np.dtype("<u4")
_CELL_LOG_PROBS = np.dtype("<f2")
# In order of field number, which is the order of the checksum.
_ARRAY_FIELDS = [field.name for field in teacher_pb2.Rows.DESCRIPTOR.fields if field.type == field.TYPE_BYTES]


def encode_rows(rows: TargetRows) -> teacher_pb2.Rows:
    """Pack rows: 20 bytes a row and 6 a cell.

    Raises:
        LimitExceededError: a row holds more cells than the format can count.
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
    return teacher_pb2.Rows(
        first_row=rows.first_row,
        cell_counts=cell_counts.astype(_CELL_COUNTS).tobytes(),
        cell_ids=rows.cell_ids.astype(_CELL_IDS).tobytes(),
        cell_log_probs=_to_float16(rows.cell_log_probs).tobytes(),
        **{name: getattr(rows, name).astype(dtype, copy=False).tobytes() for name, dtype in _ROW_FIELDS.items()},
    )


def decode_rows(message: teacher_pb2.Rows, *, vocabulary_size: int | None = None) -> TargetRows:
    """Unpack rows; arrays other than the log-probabilities and the offsets are read-only views of the message.

    Args:
        message: what a teacher sent.
        vocabulary_size: rows of the student's LM head, if known; cell ids must be below it.

    Raises:
        CorruptStreamError: array lengths disagree, a value is out of its range, or a row does not sum to one.
    """
    num_rows = len(message.cases)
    row_arrays = {name: _read(message, name, dtype, num_rows) for name, dtype in _ROW_FIELDS.items()}
    row_offsets = offsets_of(_read(message, "cell_counts", _CELL_COUNTS, num_rows))
    num_cells = int(row_offsets[-1])
    cell_ids = _read(message, "cell_ids", _CELL_IDS, num_cells)
    rows = TargetRows(
        first_row=message.first_row,
        row_offsets=row_offsets,
        cell_ids=cell_ids.view("<i4"),
        cell_log_probs=_read(message, "cell_log_probs", _CELL_LOG_PROBS, num_cells).astype(np.float32),
        **row_arrays,
    )
    _check_values(rows, vocabulary_size)
    return _scaled(rows)


def checksum(message: teacher_pb2.Rows, previous: int = 0) -> int:
    """CRC-32 over the array fields in order of field number, continued from `previous`, the one of the rows before."""
    for name in _ARRAY_FIELDS:
        previous = crc32(getattr(message, name), previous)
    return previous


def _to_float16(log_probs: NDArray[np.float32]) -> NDArray[np.float16]:
    """Round to float16; only a mass of 0 becomes −inf, and rounding noise above 0 becomes 0."""
    in_range = np.clip(log_probs, _FLOAT16_LOWEST, 0.0)
    return np.where(np.isneginf(log_probs), -np.inf, in_range).astype(_CELL_LOG_PROBS)


def _read(message: teacher_pb2.Rows, name: str, dtype: np.dtype, length: int) -> NDArray:
    payload: bytes = getattr(message, name)
    if len(payload) != length * dtype.itemsize:
        raise CorruptStreamError(
            f"rows from {message.first_row}: `{name}` has {len(payload)} bytes where {length * dtype.itemsize} belong",
            field=name,
        )
    return np.frombuffer(payload, dtype)


def _check_values(rows: TargetRows, vocabulary_size: int | None) -> None:
    highest_id = 2**31 if vocabulary_size is None else vocabulary_size
    cell_counts = np.diff(rows.row_offsets)
    has_target = rows.has_target()
    _require(rows, "cases", bool((rows.cases <= max(RowCase)).all()))
    _require(rows, "cell_counts", not cell_counts[~has_target].any())
    _require(rows, "cell_counts", bool((cell_counts[rows.cases == RowCase.STOP] == 1).all()))
    _require(rows, "cell_ids", bool((rows.cell_ids.view(_CELL_IDS) < highest_id).all()))
    _require(rows, "cell_log_probs", bool((rows.cell_log_probs <= 0).all()))  # NaN fails too
    _require(rows, "emitted_log_prob", bool((np.isnan(rows.emitted_log_prob) == ~has_target).all()))
    for name in ("residual_unmapped", "residual_control", "residual_truncated"):
        _require(rows, name, bool((getattr(rows, name) >= 0).all()))


def _require(rows: TargetRows, field: str, holds: bool) -> None:
    if not holds:
        raise CorruptStreamError(f"rows from {rows.first_row}: a value of `{field}` is out of its range", field=field)


def _scaled(rows: TargetRows) -> TargetRows:
    """Scale the cells of every row with a target so that they sum to 1 − ∅.

    The scale stays within what float16 rounding explains. Where ∅ is nearly all of a row, its own rounding would
    otherwise decide cells it says nothing about (a stop of mass 1e-12 beside a residual that rounds to 1).
    """
    log_probs = rows.cell_log_probs.astype(np.float64)
    cell_mass = row_sums(np.exp(log_probs), rows.row_offsets)
    cell_counts = np.diff(rows.row_offsets)
    positive = cell_mass > 0
    # Rounding moved the sum by Σ p·|ln p|·2⁻¹¹ at most, and no n cells of sum S have more Σ p·|ln p| than equal ones.
    log_share = np.log(np.divide(cell_counts, cell_mass, out=np.ones_like(cell_mass), where=positive))
    slack = cell_mass * (log_share.clip(min=0.0) * _FLOAT16_ROUNDING + _MASS_SLACK)
    residual = rows.residual.astype(np.float64)
    mass = np.clip(1.0 - residual, cell_mass - slack, cell_mass + slack)
    if not (np.abs(mass + residual - rows.has_target()) <= _MASS_TOLERANCE).all():
        raise CorruptStreamError(f"rows from {rows.first_row}: a row does not sum to one", field="cell_log_probs")
    log_scale = np.log(np.divide(mass, cell_mass, out=np.ones_like(mass), where=positive))
    log_probs += np.repeat(log_scale, cell_counts)
    np.minimum(log_probs, 0.0, out=log_probs)
    return replace(rows, cell_log_probs=log_probs.astype(np.float32))
