"""An argument that ends the process of one rank when it arrives there."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Poison:
    """Harmless where it is made and where it passes through."""

    rank: int

    def __reduce__(self) -> tuple[object, ...]:
        return _arrive, (self.rank,)


def _arrive(rank: int) -> Poison:
    # Ray Train tells its workers their rank in the environment, as torchrun does.
    if os.environ.get("RANK") == str(rank):
        os._exit(1)
    return Poison(rank)
