"""What travels to a worker with a response's tokens, inside vLLM's pooling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from tokbridge_teacher.backends.vllm.plan_codec import decode_plan
from tokbridge_teacher.targets.device_plan import DevicePlan

_KEY = "tokbridge"


@dataclass(frozen=True)
class WorkerRequest:
    """One response, as a worker reads it."""

    tables_key: str
    """Names the pair's tables, which the worker was sent before."""
    first_row: int
    """Index of the token whose hidden state predicts the first content token: the last one of the prompt."""
    max_chunk_rows: int
    """Rows of a chunk of logits that this response may be part of."""
    plan_bytes: bytes
    """The device plan; read by the one worker that reduces, the others need it not."""

    def plan(self) -> DevicePlan:
        """What is to be computed."""
        return decode_plan(self.plan_bytes)

    def to_extra(self) -> dict[str, Any]:
        """As `extra_kwargs` of pooling parameters."""
        return {_KEY: list(astuple(self))}

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any] | None) -> WorkerRequest | None:
        """The request in `extra_kwargs`; None in those that vLLM makes itself to measure memory."""
        return cls(*extra[_KEY]) if extra and _KEY in extra else None
