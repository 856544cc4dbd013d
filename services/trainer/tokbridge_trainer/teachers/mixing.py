"""From the answers of several teachers about one response to the one target that is learned from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tokbridge.mixture import Mixture, mix_rows
from tokbridge.results import ScoreResult, Timings
from tokbridge.targets import RowCase, TargetRows
from tokbridge.truncation import truncate_rows
from tokbridge_trainer.config_teachers import TeachersConfig
from tokbridge_trainer.samples import Sample, ScoredSample


def combined(
    sample: Sample, results: Mapping[str, ScoreResult], weights: Mapping[str, float], teachers: TeachersConfig
) -> tuple[ScoredSample, Mixture | None]:
    """The scored sample: of one teacher as it answered, of several by the mixture of their rows, truncated as asked.

    Args:
        results: by name, one or more.
        weights: of these teachers at least.

    Raises:
        InvalidDataError: the rows are not of one response.
    """
    if len(results) == 1:
        ((name, result),) = results.items()
        return ScoredSample(sample, result, {name: result.rows.has_target().astype(np.float32)}), None
    answers, shares = [*results.values()], [weights[name] for name in results]
    mixture = mix_rows([result.rows for result in answers], shares)
    rows = mixture.rows
    if teachers.top_k or teachers.mass:
        rows = truncate_rows(rows, sample.emitted_ids, top_k=teachers.top_k, mass=teachers.mass)
    by_name = dict(zip(results, mixture.shares_TR.astype(np.float32), strict=True))
    return ScoredSample(sample, mixed_result(answers, shares, rows), by_name), mixture


def mixed_result(results: Sequence[ScoreResult], weights: Sequence[float], rows: TargetRows) -> ScoreResult:
    """One summary of several: work is added up, bits per byte and masses are the weighted mean of the teachers'."""
    scored_bytes = max(result.scored_bytes for result in results)
    notes = dict.fromkeys(note for result in results for note in result.notes)
    return ScoreResult(
        rows=rows,
        cases={RowCase(case).name.lower(): count for case, count in sorted(Counter(rows.cases.tolist()).items())},
        seam="+".join(sorted({result.seam for result in results})),
        notes=(*notes,),
        prompt_tokens=sum(result.prompt_tokens for result in results),
        shared_prompt_tokens=sum(result.shared_prompt_tokens for result in results),
        content_tokens=sum(result.content_tokens for result in results),
        content_log_prob=scored_bytes * _log_prob_per_byte(results, weights),
        stop_log_prob=_log_mean([result.stop_log_prob for result in results], weights),
        scored_bytes=scored_bytes,
        unresolved_mass=_mean([result.unresolved_mass for result in results], weights),
        lookahead_tail=_mean([result.lookahead_tail for result in results], weights),
        timings=_added([result.timings for result in results]),
        attempts=sum(result.attempts for result in results),
        retries=sum((Counter(result.retries) for result in results), Counter()),
    )


def _log_prob_per_byte(results: Sequence[ScoreResult], weights: Sequence[float]) -> float:
    """The mean of those who scored any; a teacher whose own opening holds the whole response has nothing to say."""
    scored = [(one, weight) for one, weight in zip(results, weights, strict=True) if one.scored_bytes]
    if not scored:
        return 0.0
    return _mean([one.content_log_prob / one.scored_bytes for one, _ in scored], [weight for _, weight in scored])


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)


def _log_mean(log_values: Sequence[float], weights: Sequence[float]) -> float:
    mean = _mean([math.exp(value) for value in log_values], weights)
    return math.log(mean) if mean > 0 else -math.inf


def _added(timings: Sequence[Timings]) -> Timings:
    names = ("prepare_s", "queue_s", "compute_s", "total_s")
    return Timings(**{name: sum(getattr(timing, name) for timing in timings) for name in names})
