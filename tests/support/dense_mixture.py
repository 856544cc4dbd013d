"""Mixtures of target rows from their definition: dense float64 vectors, row by row, teacher by teacher.

It shares nothing with the implementation: no ragged arrays, no logarithms, no sorting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from support.random_rows import random_rows
from tokbridge.targets import RowCase, TargetRows

RESIDUALS = ("residual_unmapped", "residual_control", "residual_truncated")


@dataclass(frozen=True)
class DenseRow:
    """One row as a whole distribution; all zeros without a target."""

    masses: np.ndarray
    """[V] float64."""
    residuals: np.ndarray
    """[3] float64: unmapped, control, truncated."""
    emitted: float
    named: frozenset[int]
    """Ids of its cells, those of mass 0 too."""
    has_target: bool


def dense_rows(rows: TargetRows, vocabulary_size: int) -> list[DenseRow]:
    """Every row by itself."""
    return [_dense_row(rows, i, vocabulary_size) for i in range(rows.num_rows)]


def mixed_by_hand(parts: list[list[DenseRow]], weights: list[list[float]]) -> list[DenseRow]:
    """Row i: Σ w·t / Σ w over the teachers that have a target at i; `weights[t][i]`."""
    return [_mixed_row([rows[i] for rows in parts], [of_rows[i] for of_rows in weights]) for i in range(len(parts[0]))]


def parts_of_one_response(
    rng: np.random.Generator, num_teachers: int, num_rows: int, vocabulary_size: int
) -> list[TargetRows]:
    """What several teachers might say of one response: rows of every case, a stop row at the end by chance."""
    stop_id = int(rng.integers(vocabulary_size)) if rng.random() < 0.7 else None
    return [_teacher_rows(rng, num_rows, vocabulary_size, stop_id) for _ in range(num_teachers)]


def _teacher_rows(rng: np.random.Generator, num_rows: int, vocabulary_size: int, stop_id: int | None) -> TargetRows:
    rows = random_rows(rng, num_rows, vocabulary_size=vocabulary_size)
    cases = np.where(rows.cases == RowCase.STOP, RowCase.ALIGNED, rows.cases).astype(np.uint8)
    content = TargetRows(**(vars(rows) | {"cases": cases}))
    if stop_id is None:
        return content
    mass = float(rng.choice([0.0, 1e-9, rng.random(), 1.0]))
    return TargetRows.concatenate([content, stop_row(stop_id, num_rows, mass)])


def stop_row(stop_id: int, row: int, mass: float) -> TargetRows:
    """The stop row of a response whose stop has this mass."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.array([mass], np.float32))
    return TargetRows(
        first_row=row,
        cases=np.array([RowCase.STOP], np.uint8),
        flags=np.zeros(1, np.uint8),
        row_offsets=np.array([0, 1]),
        cell_ids=np.array([stop_id], np.int32),
        cell_log_probs=log_mass,
        residual_unmapped=np.zeros(1, np.float32),
        residual_control=np.array([1 - mass], np.float32),
        residual_truncated=np.zeros(1, np.float32),
        emitted_log_prob=log_mass,
    )


def _dense_row(rows: TargetRows, i: int, vocabulary_size: int) -> DenseRow:
    masses = np.zeros(vocabulary_size)
    cells = range(rows.row_offsets[i], rows.row_offsets[i + 1])
    for cell in cells:
        masses[rows.cell_ids[cell]] += np.exp(np.float64(rows.cell_log_probs[cell]))
    has_target = RowCase(rows.cases[i]).has_target
    return DenseRow(
        masses=masses,
        residuals=np.array([float(getattr(rows, name)[i]) for name in RESIDUALS]),
        emitted=float(np.exp(np.float64(rows.emitted_log_prob[i]))) if has_target else float("nan"),
        named=frozenset(int(rows.cell_ids[cell]) for cell in cells),
        has_target=has_target,
    )


def _mixed_row(rows: list[DenseRow], weights: list[float]) -> DenseRow:
    live = [(row, weight) for row, weight in zip(rows, weights, strict=True) if row.has_target and weight > 0]
    total = sum(weight for _, weight in live)
    masses, residuals, emitted = np.zeros_like(rows[0].masses), np.zeros(3), 0.0
    for row, weight in live:
        masses += weight / total * row.masses
        residuals += weight / total * row.residuals
        emitted += weight / total * row.emitted
    named = frozenset(cell for row, _ in live for cell in row.named)
    return DenseRow(masses, residuals, emitted if live else float("nan"), named, bool(live))
