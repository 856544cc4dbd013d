"""What a client has done so far, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ClientStatistics:
    """Running totals; a finished call is one that gave all its rows."""

    calls: int = 0
    finished_calls: int = 0
    attempts: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    """Failed attempts that were followed by another one, by error code."""
    rows: int = 0
    """Rows handed out."""
    received_bytes: int = 0
    """Messages of score streams, failed attempts included, without gRPC's framing."""
    handshakes: int = 0
    registrations: int = 0
