"""What the pooler in a worker is told when the engine starts, inside vLLM's `additional_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_KEY = "tokbridge"
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class WorkerOptions:
    """Sizes that bound the memory of the device pass."""

    chunk_rows: int
    """Rows of one call of the LM head."""
    max_chunk_bytes: int
    """Of one chunk: rows × (teacher's head + student's vocabulary) × 4."""
    max_student_size: int
    """Ids of the largest student there can be."""
    max_cells: int
    """Cells a row that can be asked for."""

    def largest_student(self, teacher_size: int) -> int:
        """Ids of the largest student that still gets chunks of `chunk_rows` rows: no pass takes more memory."""
        columns = self.max_chunk_bytes // (_FLOAT_BYTES * self.chunk_rows)
        return max(1, min(self.max_student_size, columns - teacher_size))

    def to_config(self) -> dict[str, Any]:
        """As `additional_config` of an engine."""
        return {_KEY: asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> WorkerOptions:
        """The options in `additional_config`."""
        return cls(**config[_KEY])
