"""When may the rollouts of a step start? The staleness rule, as a pure state machine.

A policy version is the number of optimizer steps it has seen. Step k (0-based) trains version k, so rollouts for it
that were written by version v are k − v behind. The rule: they may start once that is at most `max_lag`. Steps that do
not depend on the policy (the warm start) may be `prefetch` ahead instead. No clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StalenessGate:
    """Which step's rollouts may start, given what is trained and what has been started."""

    max_lag: int
    end_step: int
    """Steps of the run; none starts at or past it."""
    first_on_policy_step: int = 0
    prefetch: int = 1
    """Steps that the warm start may be ahead of training."""
    version: int = 0
    """Steps trained so far, the policy version that rollout workers hold or are about to."""
    next_step: int = 0
    """The step whose rollouts start next."""

    def may_start(self) -> bool:
        """Whether the rollouts of `next_step` may start now."""
        if self.next_step >= self.end_step:
            return False
        on_policy = self.next_step >= self.first_on_policy_step
        allowed = self.max_lag if on_policy else max(self.max_lag, self.prefetch)
        return self.next_step - self.version <= allowed

    def start(self) -> int:
        """Mark the rollouts of the next step as started and return that step."""
        if not self.may_start():
            raise RuntimeError(f"step {self.next_step} may not start at version {self.version}")
        self.next_step += 1
        return self.next_step - 1

    def trained(self, step: int) -> int:
        """Mark a step as trained and its weights as sent; returns the new version. Steps are trained in order."""
        if step != self.version or step >= self.next_step:
            raise RuntimeError(f"step {step} cannot be trained: version {self.version}, started {self.next_step}")
        self.version += 1
        return self.version
