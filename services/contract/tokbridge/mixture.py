"""Mixtures of target rows: what several teachers say of the same student positions, as one row for each position.

All targets stand on the student's vocabulary, so a mixture needs nothing of the teachers' tokenizers. Where a teacher
has no target (its row is excluded or given), the others' weights are scaled up to sum to one; a row without a target
is one that nobody has. Stop rows mix as content rows do: every teacher's stop mass already stands on the student's
stop token. Pure array code; it does not know who the teachers are or how a loss uses the rows.

Axes: T teachers, R rows, C cells of all teachers' rows, M cells of the mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokbridge.errors import InvalidDataError
from tokbridge.targets import RowCase, TargetRows, offsets_of

_NO_CASE = 255
_HALF = 32
"""Bits; two numbers of 32 bits make one sort key."""


@dataclass(frozen=True)
class Mixture:
    """Mixed rows, and who is in them."""

    rows: TargetRows
    shares_TR: NDArray[np.float64]
    """[T, R], λ of each teacher in each row: a column sums to one, or to 0 where nobody has a target."""

    @property
    def num_partial(self) -> int:
        """Rows that some of the teachers have and others do not."""
        contributes_TR = self.shares_TR > 0
        return int((contributes_TR.any(0) & ~contributes_TR.all(0)).sum())


def mix_rows(parts: Sequence[TargetRows], weights: Sequence[ArrayLike]) -> Mixture:
    """The mixture Σ λ·t, row by row, over the teachers that have a target there.

    Masses, residuals (each of the three kinds by itself) and the emitted token's probability are mixed in float64. A
    cell that only some rows hold counts as 0 in the others: what they truncated stays in the truncated residual, so a
    row keeps its mass, and a cell is at most the mixed `residual_truncated` below the mixture of untruncated rows.

    A row is of the case of the teacher with the largest share (of the lowest case, where shares are equal) and has
    the flags of all that contribute.

    Args:
        parts: [T], rows of one response as each teacher gave them.
        weights: [T], a number or an array [R] each; 0 leaves a teacher out.

    Raises:
        InvalidDataError: the rows are not of one response, or a row's weights are negative, not finite or all 0.
    """
    _check_one_response(parts)
    weights_TR = _weights(weights, len(parts), parts[0].num_rows)
    has_target_TR = np.stack([rows.has_target() for rows in parts])
    live_TR = np.where(has_target_TR, weights_TR, 0.0)
    total_R = live_TR.sum(0)
    shares_TR = np.divide(live_TR, total_R, out=np.zeros_like(live_TR), where=total_R > 0)
    rows = TargetRows(
        first_row=parts[0].first_row,
        cases=_cases(parts, weights_TR, shares_TR),
        flags=_flags(parts, weights_TR, shares_TR),
        emitted_log_prob=_emitted_log_prob(parts, shares_TR),
        **{name: _mean(parts, name, shares_TR) for name in _RESIDUALS},
        **_cells(parts, shares_TR),
    )
    if (np.diff(rows.row_offsets)[rows.cases == RowCase.STOP] > 1).any():
        raise InvalidDataError("the teachers' stop rows name different stop tokens")
    return Mixture(rows, shares_TR)


_RESIDUALS = ("residual_unmapped", "residual_control", "residual_truncated")


def _check_one_response(parts: Sequence[TargetRows]) -> None:
    if not parts:
        raise InvalidDataError("a mixture needs the rows of at least one teacher")
    is_stop = parts[0].cases == RowCase.STOP
    for rows in parts[1:]:
        same_place = (rows.first_row, rows.num_rows) == (parts[0].first_row, parts[0].num_rows)
        if not same_place or not np.array_equal(rows.cases == RowCase.STOP, is_stop):
            raise InvalidDataError("rows that are to be mixed are not of one response: their places or stops differ")


def _weights(weights: Sequence[ArrayLike], num_teachers: int, num_rows: int) -> NDArray[np.float64]:
    """[T, R]."""
    if len(weights) != num_teachers:
        raise InvalidDataError(f"{len(weights)} weights for the rows of {num_teachers} teachers")
    weights_TR = np.stack([np.broadcast_to(np.asarray(weight, np.float64), num_rows) for weight in weights])
    with np.errstate(over="ignore"):
        total_R = weights_TR.sum(0)
    if not ((weights_TR >= 0).all() and np.isfinite(total_R).all() and (total_R > 0).all()):
        raise InvalidDataError("weights of a mixture must be finite, as their sum is, 0 or more, and not all 0")
    return weights_TR


def _cases(
    parts: Sequence[TargetRows], weights_TR: NDArray[np.float64], shares_TR: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """[R], of those with the largest share; where nobody has a target, of anyone with a weight."""
    cases_TR = np.stack([rows.cases for rows in parts])
    largest_R = shares_TR.max(0)
    decides_TR = np.where(largest_R > 0, shares_TR == largest_R, weights_TR > 0)
    return np.where(decides_TR, cases_TR, _NO_CASE).min(0).astype(np.uint8)


def _flags(
    parts: Sequence[TargetRows], weights_TR: NDArray[np.float64], shares_TR: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """[R], all flags of those who contribute; where nobody does, of anyone with a weight."""
    flags_TR = np.stack([rows.flags for rows in parts])
    counts_TR = np.where(shares_TR.any(0), shares_TR > 0, weights_TR > 0)
    return np.bitwise_or.reduce(np.where(counts_TR, flags_TR, 0), axis=0).astype(np.uint8)


def _mean(parts: Sequence[TargetRows], name: str, shares_TR: NDArray[np.float64]) -> NDArray[np.float32]:
    """[R], Σ λ·value of a residual."""
    values_TR = np.stack([getattr(rows, name) for rows in parts])
    return (shares_TR * values_TR).sum(0).astype(np.float32)


def _emitted_log_prob(parts: Sequence[TargetRows], shares_TR: NDArray[np.float64]) -> NDArray[np.float32]:
    """[R], ln Σ λ·t(emitted); NaN without a target."""
    log_shares_TR = _log(shares_TR)
    log_probs_TR = np.stack([rows.emitted_log_prob for rows in parts]).astype(np.float64)
    terms_TR = np.where(shares_TR > 0, log_shares_TR + log_probs_TR, -np.inf)
    mixed_R = np.minimum(np.logaddexp.reduce(terms_TR, axis=0), 0.0)
    return np.where(shares_TR.any(0), mixed_R, np.nan).astype(np.float32)


def _cells(parts: Sequence[TargetRows], shares_TR: NDArray[np.float64]) -> dict[str, NDArray]:
    """Union of the cells with Σ λ·mass each, by falling mass within a row (by id where masses are equal)."""
    terms = map(_terms, parts, _log(shares_TR))
    owners, ids, log_masses = (np.concatenate(arrays) for arrays in zip(*terms, strict=True))
    keys = owners << _HALF | ids
    order = np.argsort(keys, kind="stable")
    keys, log_masses = keys[order], log_masses[order]
    first_M = np.flatnonzero(np.diff(keys, prepend=-1))
    keys_M, log_masses_M = keys[first_M], _summed(log_masses, first_M).astype(np.float32)
    owners_M = keys_M >> _HALF
    # A float32 of 0 or less falls as the bits of its absolute value rise.
    order_M = np.argsort(owners_M << _HALF | np.abs(log_masses_M).view(np.uint32), kind="stable")
    return {
        "row_offsets": offsets_of(np.bincount(owners_M, minlength=shares_TR.shape[1])),
        "cell_ids": (keys_M[order_M] & (1 << _HALF) - 1).astype(np.int32),
        "cell_log_probs": log_masses_M[order_M],
    }


def _summed(log_masses: NDArray[np.float64], first_M: NDArray[np.int64]) -> NDArray[np.float64]:
    """[M], ln Σ exp of the terms of each cell, which begin at `first_M`; a lone term to the bit."""
    if not len(first_M):
        return log_masses
    counts_M = np.diff(first_M, append=len(log_masses))
    sums_M = _log(np.add.reduceat(np.exp(log_masses), first_M))
    return np.minimum(np.where(counts_M == 1, log_masses[first_M], sums_M), 0.0)


def _terms(
    rows: TargetRows, log_shares_R: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Row, id and ln(λ·mass) of the cells of one teacher's rows that contribute."""
    owners = np.repeat(np.arange(rows.num_rows), np.diff(rows.row_offsets))
    log_shares = log_shares_R[owners]
    counts = log_shares > -np.inf
    log_masses = log_shares[counts] + rows.cell_log_probs[counts]
    return owners[counts], rows.cell_ids[counts].astype(np.int64), log_masses


def _log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.log(values)
