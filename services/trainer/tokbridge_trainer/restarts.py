"""How often the actors of a run have been started again, and whether they may be once more. No clock, no I/O."""

from __future__ import annotations

from collections import Counter

from tokbridge.errors import ActorLostError

LEARNER = "learner"
FEED = "feed"
ROLLOUT = "rollout"


class Restarts:
    """Counts restarts of each actor of a run."""

    def __init__(self, limit: int) -> None:
        """Allow each actor so many."""
        self._limit = limit
        self._counts: Counter[tuple[str, int]] = Counter()

    def count(self, kind: str, index: int = 0) -> None:
        """Note that an actor is about to be started again.

        Raises:
            ActorLostError: it has been as often as it may.
        """
        actor, done = (kind, index), self._counts[kind, index]
        if done >= self._limit:
            name = f"{kind} {index}" if kind == ROLLOUT else kind
            raise ActorLostError(
                f"the process of the {name} actor was lost and has been started again {done} times already "
                f"(ray.max_restarts is {self._limit}); Ray's log of it may say why",
                actor=name,
                restarts=done,
            )
        self._counts[actor] += 1

    def metrics(self) -> dict[str, float]:
        """Restarts so far, by kind of actor."""
        totals: dict[str, float] = dict.fromkeys((LEARNER, FEED, ROLLOUT), 0.0)
        for (kind, _), count in self._counts.items():
            totals[kind] += count
        return {f"restarts/{kind}": total for kind, total in totals.items()}
