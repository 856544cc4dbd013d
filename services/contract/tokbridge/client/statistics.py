"""What a client has done so far, for metrics."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self


@dataclass
class ClientStatistics:
    """Running totals; a finished call is one that gave all its rows."""

    calls: int = 0
    finished_calls: int = 0
    failed_calls: Counter[str] = field(default_factory=Counter)
    """Calls that ended with an error, by its code."""
    attempts: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    """Failed attempts that were followed by another one, by error code."""
    failovers: Counter[str] = field(default_factory=Counter)
    """Those of them whose next attempt went to another replica, by error code."""
    breaker_openings: Counter[str] = field(default_factory=Counter)
    """How often each replica was left alone for a while, by its name."""
    rows: int = 0
    """Rows handed out."""
    received_bytes: int = 0
    """Messages of score streams, failed attempts included, without gRPC's framing."""
    handshakes: int = 0
    registrations: int = 0
    probes: int = 0

    def copy(self) -> Self:
        """The totals as they are now."""
        return deepcopy(self)
