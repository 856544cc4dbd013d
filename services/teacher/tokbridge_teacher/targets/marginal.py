"""The device pass: logits of a chunk of teacher positions + a plan slice → sparse base rows and the masses chains need.

A pure function of its inputs, deterministic, memory bounded by a small multiple of the chunk; no full distribution
leaves it. What reaches across rows (chains, lookahead) and truncation are the host's, in `assembly.py`.

Axes: P positions, V teacher ids, n rows of the chunk (B base, I interior), K cells kept a row, Q prefix queries, U
support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tokbridge.errors import InternalError, NonFiniteLogitsError
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.routing.interior_routes import InteriorRoutes
from tokbridge_teacher.targets.device_plan import Int64Array, PlanSlice, RowGroup
from tokbridge_teacher.targets.reductions import block_sum, top_columns
from tokbridge_teacher.targets.row_block import RowBlock

_FLOAT_BYTES = 4
_CPU_BYTES = 8 << 20
"""Of logits that a CPU reduces at once."""


@dataclass(frozen=True, eq=False)
class ChunkResult:
    """All that the host needs to know of positions `start` … `stop − 1`."""

    start: int
    stop: int
    block: RowBlock
    realized_log_probs: NDArray[np.float64]
    """[P], one fewer if the last position is the one after the content."""
    query_numbers: Int64Array
    """[q], place among all prefix queries of the plan."""
    query_log_masses: NDArray[np.float64]
    """[q]."""
    stop_log_prob: float | None
    """ln of the stop mass after the content, at most 0, from the chunk that holds the last position."""
    top_ids: NDArray[np.int32]
    """[P, T], teacher ids of largest probability; T = 0 unless asked for."""
    top_probs: NDArray[np.float32]
    """[P, T]."""


_ARRAYS = ("realized_log_probs", "query_numbers", "query_log_masses", "top_ids", "top_probs")


@torch.no_grad()
def marginalize(logits: torch.Tensor, plan_slice: PlanSlice, tables: DeviceTables) -> ChunkResult:
    """Reduce `logits` [P, V] (any float type; float32 is overwritten) to what the plan slice asks for (spec §4, §5).

    Raises:
        NonFiniteLogitsError: NaN, +inf, or −inf only, at a position.
        InternalError: logits of another shape than the plan and the tables.
    """
    expected = (plan_slice.stop - plan_slice.start, tables.teacher_size)
    if tuple(logits.shape) != expected:
        raise InternalError(f"logits of shape {tuple(logits.shape)} for a plan slice of {expected}")
    rows = _rows_at_once(logits)
    parts = [
        _reduce(logits[start : start + rows], plan_slice.slice(start, min(start + rows, len(logits))), tables)
        for start in range(0, len(logits), rows)
    ]
    return _joined(parts)


def _rows_at_once(logits: torch.Tensor) -> int:
    """Rows that go through all reductions together: a GPU wants many, a CPU no more than stay in its cache."""
    if logits.device.type != "cpu":
        return len(logits)
    return max(1, _CPU_BYTES // (_FLOAT_BYTES * logits.shape[1]))


def _joined(parts: Sequence[ChunkResult]) -> ChunkResult:
    if len(parts) == 1:
        return parts[0]
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS}
    block, last = RowBlock.joined([part.block for part in parts]), parts[-1]
    return ChunkResult(parts[0].start, last.stop, block, stop_log_prob=last.stop_log_prob, **arrays)


def _reduce(logits: torch.Tensor, plan_slice: PlanSlice, tables: DeviceTables) -> ChunkResult:
    shifted = _shift(logits, plan_slice.start)
    interior = _interior_blocks(shifted, plan_slice, tables)
    realized = _gather(shifted, np.arange(len(plan_slice.realized_ids)), plan_slice.realized_ids)
    stop_log_prob = _stop_log_prob(shifted[-1], plan_slice) if plan_slice.holds_end else None
    weights = shifted.exp_()
    totals = block_sum(weights)
    log_totals = totals.log()
    realized_log_probs = (realized.double() - log_totals[: len(realized)]).cpu().numpy()
    base = _base_block(weights, totals, realized_log_probs, plan_slice, tables)
    top_ids, top_probs = _top_tokens(weights, totals, plan_slice)
    return ChunkResult(
        plan_slice.start,
        plan_slice.stop,
        RowBlock.joined([base, *interior]),
        realized_log_probs,
        plan_slice.queries.numbers,
        _query_log_masses(weights, log_totals, plan_slice, tables),
        stop_log_prob,
        top_ids,
        top_probs,
    )


def _shift(logits: torch.Tensor, start: int) -> torch.Tensor:
    """Logits less their row maximum, float32 [P, V], in place where the type allows."""
    peaks = logits.amax(-1, keepdim=True)
    finite = torch.isfinite(peaks[:, 0])
    if not bool(finite.all()):
        position = start + int((~finite).nonzero()[0])
        raise NonFiniteLogitsError(f"the teacher's logits at position {position} are not finite", position=position)
    return logits.float().sub_(peaks.float())


def _stop_log_prob(shifted_V: torch.Tensor, plan_slice: PlanSlice) -> float:
    """ln of the stop mass at one position, at most 0; the row is summed in float64, as a total of float32 block sums
    may come out below the mass of its own stop tokens.
    """
    logits = shifted_V.double()
    stop_mass = logits[_to_device(plan_slice.stop_ids, logits)].logsumexp(0)
    return min(float(stop_mass - logits.logsumexp(0)), 0.0)


def _to_device(array: NDArray[np.integer] | NDArray[np.floating], like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(array, device=like.device)


def _gather(x_PV: torch.Tensor, rows: Int64Array, columns: Int64Array) -> torch.Tensor:
    return x_PV[_to_device(rows, x_PV), _to_device(columns, x_PV)]


def _base_block(
    weights: torch.Tensor,
    totals: torch.Tensor,
    realized_log_probs: NDArray[np.float64],
    plan_slice: PlanSlice,
    tables: DeviceTables,
) -> RowBlock:
    """Rows that start at a teacher boundary (A.4); `weights` [P, V] are unnormalised probabilities.

    Where most positions start one, all are folded: to fold a few more costs less than to copy the others.
    """
    group = plan_slice.base
    if 2 * len(group.rows) < len(weights):
        picked = _to_device(group.positions, weights)
        weights, totals = weights.index_select(0, picked), totals.index_select(0, picked)
        group = replace(group, positions=np.arange(len(group.rows)))
    byteless = [
        weights.index_select(1, _to_device(ids, weights)).sum(-1, dtype=torch.float64)
        for ids in (plan_slice.stop_ids, plan_slice.control_ids)
    ]
    unmapped = block_sum(weights.index_select(1, tables.unmapped_ids))
    cells = tables.fold(weights)
    cells[:, tables.student_size] = byteless[0].float()
    loose = _Loose(unmapped, byteless[1], weights.mv(tables.extended))
    head_log_probs = realized_log_probs[plan_slice.base.positions]
    return _row_block(group, cells, totals, loose, head_log_probs, plan_slice.num_cells)


def _interior_blocks(shifted: torch.Tensor, plan_slice: PlanSlice, tables: DeviceTables) -> list[RowBlock]:
    """Rows that start inside a teacher token (A.6), one block for each realized prefix r of the slice."""
    rows_by_prefix: dict[bytes, list[int]] = {}
    for index, routes in enumerate(plan_slice.interior_routes):
        rows_by_prefix.setdefault(routes.prefix, []).append(index)
    return [
        _interior_block(shifted, np.asarray(indices), plan_slice, plan_slice.interior_routes[indices[0]], tables)
        for indices in rows_by_prefix.values()
    ]


def _interior_block(
    shifted: torch.Tensor, indices: Int64Array, plan_slice: PlanSlice, routes: InteriorRoutes, tables: DeviceTables
) -> RowBlock:
    """A softmax over the tokens that start with r, folded by φ_r; never a division of two masses."""
    group = plan_slice.interior.take(indices)
    compatible = tables.ids_by_rank[routes.low : routes.high]
    logits = shifted[_to_device(group.positions, shifted)[:, None], compatible]
    group = replace(group, positions=np.arange(len(indices)))
    peaks = logits.amax(-1, keepdim=True)
    logits -= torch.where(peaks.isfinite(), peaks, 0.0)
    realized = _gather(logits, np.arange(len(indices)), plan_slice.interior_realized[indices])
    weights = logits.exp_()
    totals = block_sum(weights)
    head_log_probs = (realized.double() - totals.log()).cpu().numpy()
    folded = tables.interior_fold(routes)(weights)
    cells, unmapped = folded[:, :-1], folded[:, -1].double()
    extended = _to_device(routes.extended.astype(np.float32), weights)
    loose = _Loose(unmapped, torch.zeros_like(totals), weights.mv(extended))
    block = _row_block(group, cells, totals, loose, head_log_probs, plan_slice.num_cells)
    ids = np.append(routes.cells, np.int32(-1))[block.cell_ids]
    return replace(block, cell_ids=ids)


class _Loose(NamedTuple):
    """Masses [n] beside the cells, not yet divided by the totals."""

    unmapped: torch.Tensor
    control: torch.Tensor
    unresolved: torch.Tensor


def _row_block(
    group: RowGroup,
    cells: torch.Tensor,
    totals: torch.Tensor,
    loose: _Loose,
    head_log_probs: NDArray[np.float64],
    num_cells: int,
) -> RowBlock:
    """Normalise `cells` [m, C] by `totals` [m], keep the top of each and gather the support, for the rows of `group`,
    whose positions say which of the m they are.
    """
    masses, columns = top_columns(cells, num_cells)
    owners = _to_device(group.positions[group.support_owners], cells)
    support = _to_device(group.support_columns, cells)
    if cells.shape[1]:
        wanted = _shares(torch.where(support >= 0, cells[owners, support.clamp_min(0)], 0.0), totals[owners])
    else:
        wanted = np.zeros(len(owners), np.float32)
    padding = ((0, 0), (0, num_cells - masses.shape[1]))
    at = group.positions
    return RowBlock(
        group.rows,
        np.pad(columns.to(torch.int32).cpu().numpy()[at], padding, constant_values=-1),
        np.pad(_shares(masses, totals[:, None])[at], padding),
        _shares(loose.unmapped, totals)[at],
        _shares(loose.control, totals)[at],
        _shares(loose.unresolved, totals)[at],
        head_log_probs,
        group.support_numbers,
        wanted,
    )


def _shares(masses: torch.Tensor, totals: torch.Tensor) -> NDArray[np.float32]:
    """`masses` as parts of `totals` (float64), at most 1: the two were summed in different orders."""
    return (masses.double() / totals).clamp_max(1.0).float().cpu().numpy()


def _query_log_masses(
    weights: torch.Tensor, log_totals: torch.Tensor, plan_slice: PlanSlice, tables: DeviceTables
) -> NDArray[np.float64]:
    """ln π_k(c) of each query, at most 0: the sum of the range itself, never a difference of cumulative sums."""
    queries = plan_slice.queries
    if len(queries.positions) == 0:
        return np.empty(0)
    sums = [
        weights[position, tables.ids_by_rank[low:high]].sum(dtype=torch.float64)
        for position, (low, high) in zip(queries.positions.tolist(), queries.ranks.tolist(), strict=True)
    ]
    log_masses = torch.stack(sums).log() - log_totals[_to_device(queries.positions, weights)]
    return log_masses.clamp_max(0.0).cpu().numpy()


def _top_tokens(
    weights: torch.Tensor, totals: torch.Tensor, plan_slice: PlanSlice
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The likeliest teacher tokens of each position, asked for by `lookahead` only."""
    count = min(plan_slice.num_top_tokens, weights.shape[1])
    if count == 0:
        return np.empty((len(weights), 0), np.int32), np.empty((len(weights), 0), np.float32)
    masses, ids = top_columns(weights, count)
    return ids.to(torch.int32).cpu().numpy(), _shares(masses, totals[:, None])
