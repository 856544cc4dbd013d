"""Truncation of target rows that are already there: fewer cells, the same mass (spec §6).

A teacher truncates what it sends; a mixture of several teachers' rows holds more cells again. Pure array code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InvalidDataError
from tokbridge.targets import TargetRows, offsets_of, row_sums


def truncate_rows(
    rows: TargetRows, emitted_ids: NDArray[np.integer], *, top_k: int = 0, mass: float = 0.0
) -> TargetRows:
    """Keep each row's largest cells until a limit is met, and the emitted token's always; the rest becomes ∅.

    Args:
        rows: R rows, cells by falling probability.
        emitted_ids: [R], the token that the student emitted at each row.
        top_k: cells a row; 0: no limit.
        mass: probability that the kept cells cover; 0 or 1: no limit.

    Raises:
        InvalidDataError: not one emitted id a row.
    """
    if len(emitted_ids) != rows.num_rows:
        raise InvalidDataError(f"{len(emitted_ids)} emitted ids for {rows.num_rows} rows")
    counts_R = np.diff(rows.row_offsets)
    owners = np.repeat(np.arange(rows.num_rows), counts_R)
    starts = rows.row_offsets[:-1][owners]
    masses = np.exp(rows.cell_log_probs.astype(np.float64))
    covered = np.concatenate([[0.0], np.cumsum(masses)])
    keep = rows.cell_ids == emitted_ids[owners]
    within = np.ones_like(keep)
    if top_k:
        within &= np.arange(len(owners)) - starts < top_k
    if 0 < mass < 1:
        within &= covered[:-1] - covered[starts] < mass
    keep |= within
    dropped_R = row_sums(np.where(keep, 0.0, masses), rows.row_offsets)
    return replace(
        rows,
        row_offsets=offsets_of(np.bincount(owners[keep], minlength=rows.num_rows)),
        cell_ids=rows.cell_ids[keep],
        cell_log_probs=rows.cell_log_probs[keep],
        residual_truncated=(rows.residual_truncated.astype(np.float64) + dropped_R).astype(np.float32),
    )
