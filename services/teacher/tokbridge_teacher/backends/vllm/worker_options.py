"""What the pooler in a worker is told when the engine starts, inside vLLM's `additional_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_KEY = "tokbridge"


@dataclass(frozen=True)
class WorkerOptions:
    """Sizes that bound the memory of the device pass."""

    chunk_rows: int
    """Rows of one call of the LM head."""
    max_student_size: int
    """Columns of the largest fold that can be asked for."""
    max_cells: int
    """Cells a row that can be asked for."""

    def to_config(self) -> dict[str, Any]:
        """As `additional_config` of an engine."""
        return {_KEY: asdict(self)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> WorkerOptions:
        """The options in `additional_config`."""
        return cls(**config[_KEY])
