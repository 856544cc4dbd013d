"""A small score request that every instance of a teacher answers once, and how far two answers are apart.

The request is a function of the student and the teacher's limits, so all replicas are asked the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokbridge.description import TeacherDescription
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.targets import TargetRows

PROBE_ID_PREFIX = "probe-"
PROBE_TEXT = b"A replica should read this line, and the numbers 12, 345 and 6789, as the others do. x = f(y) + 1\n"
_MAX_IDS = 32
_TOP_K = 64


@dataclass(frozen=True)
class ProbeDifference:
    """How far two answers to the probe are apart."""

    divergence: float
    """Largest Jensen-Shannon divergence of two rows, in nats, between 0 and ln 2; inf if the rows do not compare."""
    log_prob: float
    """Largest difference between the log-probabilities of an emitted token, in nats."""


def probe_request(student: StudentRegistration, teacher: TeacherDescription, request_id: str) -> ScoreRequest:
    """The probe in this student's tokens."""
    token_ids = _spelled(student.vocabulary.ids_by_bytes)[:_MAX_IDS]
    return ScoreRequest(
        messages=[{"role": "user", "content": "Write one line."}],
        response=student.vocabulary.content_of(token_ids),
        token_ids=np.asarray(token_ids, np.int32),
        stop_id=student.turn_end_id,
        top_k=min(_TOP_K, teacher.limits.max_top_k),
        mass=1.0,
        request_id=request_id,
    )


def difference(first: TargetRows, second: TargetRows) -> ProbeDifference:
    """Compare two answers to one request."""
    if not np.array_equal(first.cases, second.cases):
        return ProbeDifference(float("inf"), float("inf"))
    rows = np.flatnonzero(first.has_target())
    divergences = [_divergence(_row(first, row), _row(second, row)) for row in rows.tolist()]
    emitted = first.emitted_log_prob[rows], second.emitted_log_prob[rows]
    return ProbeDifference(max(divergences, default=0.0), _largest_difference(*emitted))


def _spelled(ids_by_bytes: dict[bytes, int]) -> list[int]:
    """Longest tokens first, bytes that no token has left out; any tokens at all if none fits."""
    ids: list[int] = []
    start = 0
    while start < len(PROBE_TEXT):
        fitting = (end for end in range(len(PROBE_TEXT), start, -1) if PROBE_TEXT[start:end] in ids_by_bytes)
        end = next(fitting, None)
        if end is not None:
            ids.append(ids_by_bytes[PROBE_TEXT[start:end]])
        start = end or start + 1
    return ids or sorted(ids_by_bytes.values())[:_MAX_IDS]


def _row(rows: TargetRows, index: int) -> dict[int, float]:
    cells = slice(rows.row_offsets[index], rows.row_offsets[index + 1])
    return dict(zip(rows.cell_ids[cells].tolist(), np.exp(rows.cell_log_probs[cells]).tolist(), strict=True))


def _divergence(first: dict[int, float], second: dict[int, float]) -> float:
    """Of the tokens that both rows hold, and all else as one outcome: at most the divergence of the whole rows."""
    shared = sorted(first.keys() & second.keys())
    p, q = (_with_rest([row[token] for token in shared]) for row in (first, second))
    mean = (p + q) / 2
    return float((_relative_entropy(p, mean) + _relative_entropy(q, mean)) / 2)


def _with_rest(masses: list[float]) -> NDArray[np.float64]:
    distribution = np.array([*masses, max(0.0, 1.0 - sum(masses))])
    return distribution / distribution.sum()


def _relative_entropy(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    support = p > 0
    return float(np.sum(p[support] * np.log(p[support] / q[support])))


def _largest_difference(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    finite = np.isfinite(first) & np.isfinite(second)
    if not np.array_equal(np.isfinite(first), np.isfinite(second)):
        return float("inf")
    return float(np.max(np.abs(first - second), where=finite, initial=0.0))
