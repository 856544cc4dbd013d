"""Checks of what a teacher answered to a small request, several times. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokbridge.client.agreement import DEFAULT_MAX_DIVERGENCE
from tokbridge.client.probe import difference
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreResult
from tokbridge_cli.checks.result import Check, Status

_MASS_TOLERANCE = 2e-3
"""A row's cells travel rounded."""
_LONGEST_OVERHEAD_S = 1.0


@dataclass(frozen=True)
class Answer:
    """One scored response and how long its caller waited."""

    result: ScoreResult
    seconds: float


def check_rows(request: ScoreRequest, result: ScoreResult) -> Check:
    """One row a token and one for the stop, each a distribution."""
    rows = result.rows
    facts: dict[str, object] = {"cases": dict(result.cases), "seam": result.seam}
    with_target = rows.has_target()
    if rows.num_rows != request.num_rows or not with_target.any():
        return Check("rows", Status.FAILED, f"{rows.num_rows} rows came for {request.num_rows} positions", facts)
    error = float(np.abs(rows.row_mass()[with_target] - 1).max())
    facts["largest_mass_error"] = error
    if not error <= _MASS_TOLERANCE:  # NaN is no pass
        return Check("rows", Status.FAILED, f"a row sums to 1 only within {error:.2g}", facts)
    if not (rows.emitted_log_prob[with_target] <= 0).all():
        return Check("rows", Status.FAILED, "a log-probability is above 0 or no number", facts)
    shown = ", ".join(f"{case} {number}" for case, number in result.cases.items() if number)
    return Check("rows", Status.OK, f"{rows.num_rows} rows ({shown}) that sum to 1 within {error:.1g}", facts)


def check_determinism(results: Sequence[ScoreResult]) -> Check:
    """The same request again gives the same rows, to the bit; in other batches they differ by rounding alone."""
    first, *others = results
    if all(_bits(first) == _bits(other) for other in others):
        return Check("determinism", Status.OK, f"{len(results)} answers to one request are the same to the bit")
    found = max((difference(first.rows, other.rows) for other in others), key=lambda found: found.divergence)
    facts: dict[str, object] = {"divergence": found.divergence, "log_prob": found.log_prob}
    if found.divergence > DEFAULT_MAX_DIVERGENCE:
        message = f"rows of one request diverge by {found.divergence:.2g} nats from call to call"
        return Check("determinism", Status.FAILED, message, facts)
    message = (
        f"log-probabilities of one request differ by up to {found.log_prob:.2g}; "
        "on a teacher that others use as well, they share batches, and this is rounding"
    )
    return Check("determinism", Status.WARNING, message, facts)


def check_overhead(answers: Sequence[Answer]) -> Check:
    """Time of a call that the service does not account for: network, wire format, client."""
    seconds = statistics.median(answer.seconds - answer.result.timings.total_s for answer in answers)
    status = Status.WARNING if seconds > _LONGEST_OVERHEAD_S else Status.OK
    longest = max(answer.seconds for answer in answers)
    message = f"{1000 * seconds:.1f} ms of a call are neither queue nor model; a small call takes up to {longest:.2f} s"
    return Check("lag", status, message, {"overhead_seconds": seconds, "longest_seconds": longest})


def check_notes(result: ScoreResult) -> Check:
    """What the service has to say about its tokenizer and template."""
    status = Status.WARNING if result.notes else Status.OK
    return Check("notes", status, "\n".join(result.notes) or "none", {"notes": list(result.notes)})


def _bits(result: ScoreResult) -> list[bytes]:
    return [values.tobytes() for values in vars(result.rows).values() if isinstance(values, np.ndarray)]
