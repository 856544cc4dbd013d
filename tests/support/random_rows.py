"""Random target rows whose mass is one, made row by row in float64."""

from __future__ import annotations

import numpy as np

from tokbridge.targets import RowCase, TargetRows, offsets_of


def random_rows(
    rng: np.random.Generator, num_rows: int, *, vocabulary_size: int = 1000, first_row: int = 0
) -> TargetRows:
    """Rows of every case, with sharp and flat distributions, cells of mass 0 and residuals of every size."""
    rows = [_random_row(rng, vocabulary_size) for _ in range(num_rows)]
    cases = np.array([case for case, *_ in rows], np.uint8)
    ids = [ids for _, ids, _, _ in rows]
    residuals = np.array([residuals for *_, residuals in rows], np.float32).reshape(num_rows, 3)
    log_probs = [log_probs for _, _, log_probs, _ in rows]
    emitted = [
        lp[rng.integers(len(lp))] if len(lp) else (0.0 if case != RowCase.STOP else -np.inf) for case, _, lp, _ in rows
    ]
    has_target = [RowCase(case).has_target for case in cases]
    return TargetRows(
        first_row=first_row,
        cases=cases,
        flags=rng.integers(0, 8, num_rows).astype(np.uint8),
        row_offsets=offsets_of(np.array([len(row_ids) for row_ids in ids], np.int64)),
        cell_ids=np.concatenate([np.empty(0, np.int32), *ids]).astype(np.int32),
        cell_log_probs=np.concatenate([np.empty(0), *log_probs]).astype(np.float32),
        residual_unmapped=residuals[:, 0],
        residual_control=residuals[:, 1],
        residual_truncated=residuals[:, 2],
        emitted_log_prob=np.where(has_target, emitted, np.nan).astype(np.float32),
    )


def _random_row(rng: np.random.Generator, vocabulary_size: int) -> tuple[RowCase, np.ndarray, np.ndarray, np.ndarray]:
    case = RowCase(rng.integers(len(RowCase)))
    if not case.has_target:
        return case, np.empty(0, np.int32), np.empty(0), np.zeros(3)
    num_cells = 1 if case is RowCase.STOP else int(rng.integers(1, 40))
    residuals = rng.dirichlet(np.full(3, 0.3)) * rng.choice([0.0, 1e-9, 1e-3, 0.3, 0.9, 1 - 1e-6, 1 - 1e-12])
    if case is RowCase.STOP and residuals.sum() == 0:
        residuals = np.array([0.0, 0.5, 0.0])
    logits = rng.normal(size=num_cells) * rng.choice([0.1, 3.0, 30.0])
    if num_cells > 1:
        logits[rng.integers(num_cells)] = rng.choice([-np.inf, 0.0])
    log_probs = np.sort(logits)[::-1]
    shift = log_probs.max()
    log_probs = log_probs - shift - np.log(np.exp(log_probs - shift).sum()) + np.log1p(-residuals.sum())
    return case, rng.choice(vocabulary_size, num_cells, replace=False).astype(np.int32), log_probs, residuals
