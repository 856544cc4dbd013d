"""What became of the calls of a soak: outcomes by kind, latencies, and what must not have happened."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

from support.rows_alike import RowDifference

MAX_FAILURES = 20
"""Enough to see what is wrong."""


class Tally:
    """Counts; safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        """By kind of call: `complete`, or what came instead."""
        self.worst_s: dict[str, float] = defaultdict(float)
        """Longest call by kind and outcome."""
        self.latencies_s: dict[str, list[float]] = defaultdict(list)
        """Of complete calls, by kind."""
        self.difference = RowDifference()
        self.failures: list[str] = []
        """What must not have happened."""

    @property
    def calls(self) -> int:
        with self._lock:
            return sum(counts.total() for counts in self.outcomes.values())

    @property
    def broken(self) -> bool:
        """Whether it is pointless to go on."""
        return len(self.failures) >= MAX_FAILURES

    def count(self, kind: str, outcome: str, seconds: float) -> None:
        with self._lock:
            self.outcomes[kind][outcome] += 1
            key = f"{kind}: {outcome}"
            self.worst_s[key] = max(self.worst_s[key], seconds)
            if outcome == "complete":
                self.latencies_s[kind].append(seconds)

    def differ(self, difference: RowDifference) -> None:
        with self._lock:
            self.difference.include(difference)

    def fail(self, what: str) -> None:
        with self._lock:
            if len(self.failures) < MAX_FAILURES:
                self.failures.append(what[:3000])
                print(f"FAILURE {what[:1000]}", flush=True)

    def summary(self) -> dict[str, object]:
        """Figures for a report."""
        slowest = sorted(self.worst_s.items(), key=lambda item: -item[1])
        return {
            "calls": self.calls,
            "outcomes": {kind: dict(counts.most_common()) for kind, counts in sorted(self.outcomes.items())},
            "slowest_s": {key: round(seconds, 2) for key, seconds in slowest[:12]},
            "latency_s": {kind: _percentiles(values) for kind, values in sorted(self.latencies_s.items())},
            "largest_difference_over_allowed": {key: round(x, 3) for key, x in vars(self.difference).items()},
            "failures": self.failures,
        }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 3) for p in (50, 95, 99, 100)}
