"""How near a student is to its teacher, on data that is not trained on.

On text the teacher wrote: the student's bits per byte, beside the teacher's own, and how often both find the same next
byte the likeliest. On text the student wrote: the teacher's bits per byte, and how many responses end by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokbridge_trainer.evaluation.agreement import teacher_top_symbols
from tokbridge_trainer.evaluation.bits_per_byte import bits_per_byte
from tokbridge_trainer.evaluation.student_reading import StudentReader, StudentReading
from tokbridge_trainer.samples import ScoredSample

Metrics = dict[str, float]


def evaluate_student(
    reader: StudentReader,
    symbols_V: np.ndarray,
    written: Sequence[ScoredSample],
    rollouts: Sequence[ScoredSample],
    micro_batch_tokens: int,
) -> Metrics:
    """All metrics of `written_metrics` and `rollout_metrics`.

    Args:
        reader: of the student.
        symbols_V: what its tokens begin with (`agreement.next_symbols`).
        written: responses of the teacher, scored against this student's tokenizer.
        rollouts: responses of the student, scored.
        micro_batch_tokens: tokens, padding included, that the student reads at once.
    """
    readings = reader.read([scored.sample for scored in written], micro_batch_tokens)
    return written_metrics(readings, written, symbols_V) | rollout_metrics(rollouts)


def written_metrics(
    readings: Sequence[StudentReading], written: Sequence[ScoredSample], symbols_V: np.ndarray
) -> Metrics:
    """`written/…`: on text the teacher wrote; empty without any."""
    num_bytes = sum(len(scored.sample.response) for scored in written)
    if not num_bytes:
        return {}
    content = sum(_content_log_prob(*pair) for pair in zip(readings, written, strict=True))
    top = np.concatenate([teacher_top_symbols(scored.rows, symbols_V) for scored in written])
    agrees = np.concatenate([reading.top_symbols for reading in readings]) == top
    metrics = {
        "written/student_bits_per_byte": bits_per_byte(content, num_bytes),
        "written/teacher_bits_per_byte": _teacher_bits_per_byte(written),
    }
    if (top >= 0).any():
        metrics["written/top1_agreement"] = float(agrees[top >= 0].mean())
    stops = [r.log_probs[-1] for r, w in zip(readings, written, strict=True) if w.sample.stop_id is not None]
    if stops:
        metrics["written/student_stop_log_prob"] = float(np.mean(stops, dtype=np.float64))
    return metrics


def rollout_metrics(rollouts: Sequence[ScoredSample]) -> Metrics:
    """`rollouts/…`: on text the student wrote; empty without any."""
    if not rollouts:
        return {}
    samples = [scored.sample for scored in rollouts]
    metrics = {
        "rollouts/stop_rate": float(np.mean([sample.stop_id is not None for sample in samples])),
        "rollouts/tokens": float(np.mean([sample.num_response_tokens for sample in samples])),
    }
    if any(scored.result.scored_bytes for scored in rollouts):
        metrics["rollouts/teacher_bits_per_byte"] = _teacher_bits_per_byte(rollouts)
    return metrics


def _content_log_prob(reading: StudentReading, scored: ScoredSample) -> float:
    return float(reading.log_probs[: len(scored.sample.token_ids)].sum(dtype=np.float64))


def _teacher_bits_per_byte(scored: Sequence[ScoredSample]) -> float:
    log_prob = sum(one.result.content_log_prob for one in scored)
    return bits_per_byte(log_prob, sum(one.result.scored_bytes for one in scored))
