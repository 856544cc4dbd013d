"""Device passes made up for the start: the largest that can be asked for, whose memory vLLM then leaves free for ever,
and plain ones to compare.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokbridge_teacher.routing.device_tables import TableArrays
from tokbridge_teacher.targets.device_plan import DevicePlan, PlanSlice, PrefixQueries, RowGroup

_TOP_TOKENS = 64
"""As many as `lookahead` asks for."""


def plain_plan(teacher_ids: NDArray[np.integer], num_cells: int, num_top_tokens: int = 0) -> DevicePlan:
    """A row for every content token [M], its `num_cells` likeliest cells, `num_top_tokens` likeliest teacher tokens."""
    none = np.empty(0, np.int64)
    numbers = np.arange(len(teacher_ids))
    return DevicePlan(
        teacher_ids=teacher_ids.astype(np.int64),
        base=RowGroup(numbers, numbers, numbers, np.zeros_like(numbers), numbers),
        interior=RowGroup(none, none, none, none, none),
        interior_routes=(),
        interior_realized=none,
        queries=PrefixQueries(none, none.reshape(0, 2), none),
        stop_ids=np.zeros(1, np.int64),
        control_ids=np.ones(1, np.int64),
        num_cells=num_cells,
        num_top_tokens=num_top_tokens,
    )


def largest_slice(rows: int, num_cells: int) -> PlanSlice:
    """A chunk of `rows` positions, all of them folded, which takes as much memory again as their logits."""
    return plain_plan(np.zeros(rows - 1, np.int64), num_cells, _TOP_TOKENS).slice(0, rows)


def largest_tables(teacher_size: int, student_size: int) -> TableArrays:
    """Every student column is in use, some of them by several teacher ids."""
    ids = np.arange(teacher_size, dtype=np.int32)
    return TableArrays(
        phi=ids % np.int32(student_size),
        extended=ids % 2 == 0,
        teacher_ids_by_rank=ids,
        byteless_ids=np.arange(2),
        student_size=student_size,
    )
