"""What a score request takes of the service: before it is prepared an estimate from its sizes, afterwards the figure.

Device memory is not summed over requests: one chunk of logits is in flight at a time, whatever waits, so what counts is
that no chunk is larger than the service allows.
"""

from __future__ import annotations

from tokbridge.errors import LimitExceededError
from tokbridge.requests import ScoreRequest
from tokbridge_teacher.admission import Cost
from tokbridge_teacher.preparation import PreparedResponse

_BYTES_A_TOKEN = 4
"""Of conversations, for the estimate."""
_FLOAT_BYTES = 4
_CELL_BYTES = 8
"""An id and a mass."""
_ANSWER_BYTES = 16
"""A mass that was asked for by name, and its place."""
_ROW_BYTES = 96
"""What a row has beside its cells: case, flags, residual, log-probs, and its places in the arrays."""


def estimated_cost(request: ScoreRequest, max_tokens: int) -> Cost:
    """A request as it arrives: its conversation at four bytes a token and as many content tokens as the student's.

    Args:
        request: not looked into further than its sizes.
        max_tokens: an estimate is never above it: only a measured size may refuse a request for good.
    """
    text = [value for message in request.messages for value in dict(message).values() if isinstance(value, str)]
    conversation = sum(map(len, text)) + len(request.student_tail)
    return Cost(tokens=min(max_tokens, len(request.token_ids) + conversation // _BYTES_A_TOKEN + 1))


def measured_cost(prepared: PreparedResponse) -> Cost:
    """A request whose tokens, rows and cells are known."""
    plan = prepared.plan
    looked_at = plan.options.lookahead_tokens if plan.options.looks_ahead else 0
    row_bytes = _ROW_BYTES + _CELL_BYTES * plan.num_cells
    asked_bytes = _ANSWER_BYTES * (len(plan.support_cells) + len(plan.queries.positions))
    return Cost(
        tokens=prepared.num_tokens,
        result_bytes=plan.num_rows * row_bytes + plan.num_positions * looked_at * _CELL_BYTES + asked_bytes,
    )


def chunk_rows_within(prepared: PreparedResponse, max_bytes: int) -> int:
    """Rows of a chunk of logits that fit the device beside what is folded from them: each takes (teacher's head +
    student's vocabulary) × 4 bytes.

    Raises:
        LimitExceededError: not even one fits; names `max_chunk_bytes`.
    """
    columns = prepared.device_tables.teacher_size + prepared.device_tables.student_size + 1
    row_bytes = columns * _FLOAT_BYTES
    if row_bytes > max_bytes:
        raise LimitExceededError(
            f"One row of logits at these vocabularies takes {row_bytes} bytes; {max_bytes} are allowed.",
            name="max_chunk_bytes",
            value=row_bytes,
            limit=max_bytes,
        )
    return max_bytes // row_bytes
