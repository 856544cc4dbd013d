"""Gathers what becomes of each sample of a step: scored, or dropped with a reason. Each is counted once.

A pure state machine: the feed does the I/O around it.
"""

from __future__ import annotations

from collections import Counter

from tokbridge.errors import TokbridgeError
from tokbridge_trainer.samples import SampleKey, ScoredSample, StepBatch


class StepCollector:
    """Outcomes of the samples of one step."""

    def __init__(self) -> None:
        self._seen: set[SampleKey] = set()
        self._scored: dict[SampleKey, ScoredSample] = {}
        self._drops: Counter[str] = Counter()
        self._failure: BaseException | None = None

    @property
    def keys(self) -> frozenset[SampleKey]:
        """Of the samples that have arrived."""
        return frozenset(self._seen)

    @property
    def num_resolved(self) -> int:
        """Samples whose outcome is known."""
        return len(self._scored) + self._drops.total()

    @property
    def failure(self) -> BaseException | None:
        """The first failure that must stop the run."""
        return self._failure

    def expect(self, key: SampleKey) -> bool:
        """Note that a sample has arrived; False if it had before and must not be scored again."""
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def add(self, scored: ScoredSample) -> None:
        """A sample was scored."""
        self._scored[scored.sample.key] = scored

    def drop(self, error: TokbridgeError) -> None:
        """A sample could not be scored and is left out."""
        self._drops[str(error.code)] += 1

    def fail(self, error: BaseException) -> None:
        """A sample could not be scored and the run must stop."""
        self._failure = self._failure or error

    def batch(self) -> StepBatch:
        """The outcomes, in the order of the keys."""
        return StepBatch([self._scored[key] for key in sorted(self._scored)], self._drops)
