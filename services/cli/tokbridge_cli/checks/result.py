"""What a check of a running teacher says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """How a check went."""

    OK = "ok"
    WARNING = "warning"
    """A run works, and is worse for it."""
    FAILED = "failed"
    """A run does not work."""


@dataclass(frozen=True)
class Check:
    """One check and what it found."""

    name: str
    status: Status
    message: str
    facts: dict[str, object] = field(default_factory=dict)
