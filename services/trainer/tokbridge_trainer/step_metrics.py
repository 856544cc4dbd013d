"""Numbers of one training step: pure functions of its batch, its masks and the divergence of its rows.

Names are flat, with a slash between group and quantity, as TensorBoard groups them. A mean over nothing is left out
rather than written as 0 or NaN.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokbridge.results import ScoreResult
from tokbridge.targets import RowCase, TargetRows
from tokbridge_trainer.samples import ScoredSample, StepBatch

Metrics = dict[str, float]


@dataclass(frozen=True)
class LearnedRows:
    """What the loss saw, row by row, over the whole batch. Axis R: rows in the loss."""

    cases: NDArray[np.uint8]
    divergence: NDArray[np.float32]
    """Nats."""
    target_log_prob: NDArray[np.float32]
    """ln t of the emitted token; −inf where the target gives it no mass."""
    student_log_prob: NDArray[np.float32]
    """ln p of the emitted token, at temperature 1."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Rows not in the loss, by reason."""
    num_padding: int = 0
    """Tokens of padding that the model was fed."""
    shares: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """[R] by teacher, its share in each row's target."""

    @classmethod
    def concatenate(cls, parts: Sequence[LearnedRows]) -> LearnedRows:
        """Join the rows of all micro-batches."""
        empty = np.empty(0, np.float32)
        names = ("divergence", "target_log_prob", "student_log_prob")
        left_out: Counter[str] = Counter()
        for part in parts:
            left_out.update(part.left_out)
        teachers = sorted({teacher for part in parts for teacher in part.shares})
        return cls(
            left_out=left_out,
            num_padding=sum(part.num_padding for part in parts),
            shares={teacher: np.concatenate([part.share_of(teacher) for part in parts]) for teacher in teachers},
            cases=np.concatenate([np.empty(0, np.uint8), *(part.cases for part in parts)]),
            **{name: np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names},
        )

    def share_of(self, teacher: str) -> NDArray[np.float32]:
        """[R], 0 for a teacher that was not asked about any of these rows."""
        return self.shares.get(teacher, np.zeros(len(self.cases), np.float32))


def teacher_shares(
    scored: Sequence[ScoredSample], response_index_R: NDArray[np.integer], row_index_R: NDArray[np.integer]
) -> dict[str, NDArray[np.float32]]:
    """[R] by teacher, its share in the targets of these rows of these samples; rows of one sample stand together."""
    teachers = sorted({teacher for s in scored for teacher in s.shares})
    shares = {teacher: np.zeros(len(row_index_R), np.float32) for teacher in teachers}
    bounds = np.searchsorted(response_index_R, np.arange(len(scored) + 1))
    for s, start, end in zip(scored, bounds, bounds[1:], strict=False):
        for teacher, share in s.shares.items():
            shares[teacher][start:end] = share[row_index_R[start:end]]
    return shares


def loss_metrics(rows: LearnedRows, normalizer: int) -> Metrics:
    """`loss` (Σ / Z), its share by case, the mean divergence by case, the emitted-token log-ratio, rows left out.

    `loss/CASE` sum to `loss`, and so do `teachers/NAME/loss`, where a row's part is shared out as its target was mixed;
    `divergence/CASE` are means over the rows of that case.
    """
    metrics: Metrics = {"loss": float(rows.divergence.sum(dtype=np.float64)) / max(1, normalizer)}
    for case in RowCase:
        selected = rows.divergence[rows.cases == case]
        if len(selected):
            metrics[f"loss/{case.name.lower()}"] = float(selected.sum(dtype=np.float64)) / max(1, normalizer)
            metrics[f"divergence/{case.name.lower()}"] = float(selected.mean(dtype=np.float64))
    for teacher, share in rows.shares.items():
        part = float((share * rows.divergence).sum(dtype=np.float64))
        metrics[f"teachers/{teacher}/loss"] = part / max(1, normalizer)
    log_ratio = rows.target_log_prob - rows.student_log_prob
    finite = np.isfinite(log_ratio)
    if finite.any():
        metrics["emitted/log_ratio"] = float(log_ratio[finite].mean(dtype=np.float64))
    metrics |= {f"left_out/{reason}": float(count) for reason, count in sorted(rows.left_out.items())}
    metrics["rows/learned"] = float(len(rows.cases))
    metrics["tokens/padding"] = float(rows.num_padding)
    metrics["emitted/zero_mass_rows"] = float(np.isneginf(rows.target_log_prob).sum())
    return metrics


def target_metrics(targets: Sequence[TargetRows]) -> Metrics:
    """Counts of every row case, the mean residual split of content rows, and the teacher's mean stop mass."""
    cases = np.concatenate([np.empty(0, np.uint8), *(rows.cases for rows in targets)])
    metrics: Metrics = {f"rows/{case.name.lower()}": float((cases == case).sum()) for case in RowCase}
    content = (cases == RowCase.ALIGNED) | (cases == RowCase.INTERIOR) | (cases == RowCase.SPANNING)
    for name in ("unmapped", "control", "truncated"):
        _add_mean(metrics, f"residual/{name}", _joined(targets, f"residual_{name}")[content])
    _add_mean(metrics, "stop/target_mass", np.exp(_joined(targets, "emitted_log_prob")[cases == RowCase.STOP]))
    return metrics


def sample_metrics(batch: StepBatch, version: int) -> Metrics:
    """Counts of samples by how they ended and why they were dropped, lengths, policy lag, and the teacher's view."""
    samples = [scored.sample for scored in batch.scored]
    metrics: Metrics = {
        "samples/scored": float(len(samples)),
        "samples/stopped": float(sum(sample.stop_id is not None for sample in samples)),
        "samples/cut": float(sum(sample.stop_id is None for sample in samples)),
        "samples/dropped": float(batch.drops.total()),
        "tokens/response": float(batch.num_response_tokens),
        "tokens/prompt": float(sum(len(sample.prompt.token_ids) for sample in samples)),
    }
    metrics |= {f"samples/dropped/{reason}": float(count) for reason, count in sorted(batch.drops.items())}
    lags = np.array([version - sample.policy_version for sample in samples if sample.policy_version >= 0])
    _add_mean(metrics, "policy_lag/mean", lags)
    if len(lags):
        metrics["policy_lag/max"] = float(lags.max())
    return metrics | _teacher_metrics(batch)


def _teacher_metrics(batch: StepBatch) -> Metrics:
    """Thinking seams, retries by cause, and the teacher's bits per byte on the student's responses."""
    results = [scored.result for scored in batch.scored]
    seams = Counter(result.seam for result in results)
    metrics: Metrics = {f"teacher/seam/{seam}": float(count) for seam, count in sorted(seams.items())}
    retries: Counter[str] = Counter()
    for result in results:
        retries.update(result.retries)
    metrics |= {f"teacher/retries/{reason}": float(count) for reason, count in sorted(retries.items())}
    metrics["teacher/compute_s"] = sum(result.timings.compute_s for result in results)
    scored_bytes = sum(result.scored_bytes for result in results)
    if scored_bytes:
        nats = -sum(result.content_log_prob for result in results)
        metrics["teacher/bits_per_byte"] = nats / math.log(2) / scored_bytes
    return metrics | _unresolved_metrics(results)


def _unresolved_metrics(results: Sequence[ScoreResult]) -> Metrics:
    """Per content row with a target: mass that other cuts of the teacher could move; what `lookahead` did not read."""
    content_rows = sum(result.cases.get(case, 0) for result in results for case in ("aligned", "interior", "spanning"))
    if not content_rows:
        return {}
    return {
        "teacher/unresolved_mass": sum(result.unresolved_mass for result in results) / content_rows,
        "teacher/lookahead_tail": sum(result.lookahead_tail for result in results) / content_rows,
    }


def _joined(targets: Sequence[TargetRows], name: str) -> NDArray[np.float32]:
    return np.concatenate([np.empty(0, np.float32), *(getattr(rows, name) for rows in targets)])


def _add_mean(metrics: Metrics, name: str, values: NDArray[np.number]) -> None:
    if len(values):
        metrics[name] = float(values.mean(dtype=np.float64))
