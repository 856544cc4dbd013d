"""Target rows of a batch as torch tensors, with the weight of every row in the loss (spec §5–§7).

Rows without a target get no entry. Whitespace rows get weight 0, or as many random others do (the paper's control), or
none. The module knows the rows' places in their responses, not hidden states: the caller gathers those.

Axes: R rows with a target, C cells of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tokbridge.errors import InvalidDataError
from tokbridge.targets import RowCase, RowFlag, TargetRows, offsets_of


class WhitespaceRule(StrEnum):
    """Which rows the whitespace mask leaves out of the loss; stop rows always stay."""

    DROP = "drop"
    """Rows whose emitted token is only spaces and tabs."""
    KEEP = "keep"
    """None."""
    RANDOM = "random"
    """As many random other content rows of the same response (all of them, where there are fewer)."""


@dataclass(frozen=True)
class TargetTensors:
    """Targets of R rows, ready for `bpm_loss`, in the order of the responses and of the rows within them."""

    cell_ids: Tensor
    """[C] int64, student token ids, unique within a row."""
    cell_log_probs: Tensor
    """[C] float32, −inf for a cell of mass 0."""
    row_offsets: Tensor
    """[R + 1] int64, cells of row i are `row_offsets[i] : row_offsets[i + 1]`."""
    residual_log_mass: Tensor
    """[R] float32, log of ∅; −inf where nothing is left over."""
    is_stop: Tensor
    """[R] bool."""
    weights: Tensor
    """[R] float32, factor of the row's divergence in the loss: 1, or 0 where it is left out."""
    cases: Tensor
    """[R] uint8, values of `RowCase`."""
    emitted_log_probs: Tensor
    """[R] float32, the target's log-probability of the emitted token."""
    response_index: Tensor
    """[R] int64, which of the given responses the row belongs to."""
    row_index: Tensor
    """[R] int64, the row's place in that response: the index of the emitted student token."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Rows not in the loss by reason: `excluded`, `control`, `given` (no target); `whitespace`, `random` (weight 0)."""

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.is_stop)

    @classmethod
    def from_rows(
        cls,
        responses: Sequence[TargetRows],
        *,
        whitespace: WhitespaceRule | str = WhitespaceRule.DROP,
        generators: Sequence[np.random.Generator] | None = None,
        device: torch.device | str = "cpu",
    ) -> TargetTensors:
        """Join the rows of several responses, one `TargetRows` each.

        `generators`, one a response, draw the rows that the rule `random` leaves out; the other rules need none.

        Raises:
            InvalidDataError: the rule `random` without generators.
        """
        rule, left_out = WhitespaceRule(whitespace), Counter[str]()
        parts = [_response_arrays(-1, TargetRows.empty(), np.empty(0))]
        for index, rows in enumerate(responses):
            has_target = rows.has_target()
            left_out.update(RowCase(case).name.lower() for case in rows.cases[~has_target])
            dropped = _dropped_rows(rows, rule, generators[index] if generators else None)
            left_out.update({_REASONS[rule]: len(dropped)} if len(dropped) else {})
            weights = np.ones(rows.num_rows, np.float32)
            weights[dropped] = 0.0
            parts.append(_response_arrays(index, rows, weights))
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        joined["row_offsets"] = offsets_of(joined.pop("cells_per_row"))
        return cls(**{name: torch.from_numpy(a) for name, a in joined.items()}, left_out=dict(left_out)).to(device)

    def predictor_index(self, first_columns_B: Sequence[int] | Tensor, width: int) -> Tensor:
        """[R] int64, where the hidden state (or the logits) that predicts each row's token stands in a flattened [B·L].

        Args:
            first_columns_B: column of the first token of each response, at least 1; its predecessor predicts it. A stop
                row is predicted by the last content token, so the stop token itself need not be fed.
            width: L.
        """
        first_B = torch.as_tensor(first_columns_B, dtype=torch.int64, device=self.row_index.device)
        first_B = first_B + width * torch.arange(len(first_B), device=first_B.device)
        return first_B[self.response_index] + self.row_index - 1

    def to(self, device: torch.device | str) -> TargetTensors:
        """The same targets on another device."""
        names = [f.name for f in fields(self) if f.name != "left_out"]
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in names})


_REASONS = {WhitespaceRule.DROP: "whitespace", WhitespaceRule.KEEP: "", WhitespaceRule.RANDOM: "random"}


def _dropped_rows(rows: TargetRows, rule: WhitespaceRule, generator: np.random.Generator | None) -> NDArray[np.int64]:
    """Indices of rows with a target that the rule leaves out."""
    is_content = rows.has_target() & (rows.cases != RowCase.STOP)
    is_whitespace = (rows.flags & RowFlag.WHITESPACE) > 0
    dropped = np.flatnonzero(is_content & is_whitespace)
    if rule is WhitespaceRule.KEEP:
        return dropped[:0]
    if rule is WhitespaceRule.DROP:
        return dropped
    if generator is None:
        raise InvalidDataError("the whitespace rule `random` needs a random generator")
    others = np.flatnonzero(is_content & ~is_whitespace)
    return generator.choice(others, size=min(len(dropped), len(others)), replace=False)


def _response_arrays(index: int, rows: TargetRows, weights: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Arrays of one response's rows with a target; they join to the fields of `TargetTensors`."""
    has_target = rows.has_target()
    cells_per_row = np.diff(rows.row_offsets)
    kept_cells = np.repeat(has_target, cells_per_row)
    with np.errstate(divide="ignore"):
        residual_log_mass = np.log(np.maximum(rows.residual, 0.0))
    per_row = {
        "cells_per_row": cells_per_row.astype(np.int64),
        "residual_log_mass": residual_log_mass.astype(np.float32),
        "is_stop": rows.cases == RowCase.STOP,
        "weights": weights.astype(np.float32),
        "cases": rows.cases,
        "emitted_log_probs": rows.emitted_log_prob.astype(np.float32),
        "response_index": np.full(rows.num_rows, index, np.int64),
        "row_index": np.arange(rows.num_rows, dtype=np.int64) + rows.first_row,
    }
    return {name: array[has_target] for name, array in per_row.items()} | {
        "cell_ids": rows.cell_ids[kept_cells].astype(np.int64),
        "cell_log_probs": rows.cell_log_probs[kept_cells].astype(np.float32),
    }
