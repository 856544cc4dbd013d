"""Whether the model still computes, judged by how its passes end: a pure state machine. Knows neither queue nor device.

COMPUTES ◀── a pass ends well ──▶ FAILS (so many passes in a row ended by a fault)
    └────── the backend is lost ──────┴────▶ LOST, for good
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto


class ModelState(Enum):
    """What may be expected of the next pass."""

    COMPUTES = auto()
    FAILS = auto()
    """Nothing, but it may recover: out of memory, as a rule."""
    LOST = auto()
    """Nothing, until the process is started anew."""


class ModelHealth:
    """Told of every pass by the thread that runs them; read from any."""

    def __init__(self, max_failed_passes: int, changed: Callable[[ModelState], None] = lambda _: None) -> None:
        """`changed` is called, in that thread, with every new state."""
        self._max_failed_passes = max_failed_passes
        self._changed = changed
        self._failed_in_a_row = 0
        self.state = ModelState.COMPUTES

    def pass_ended(self, *, failed: bool) -> None:
        """One pass came to its end, by a fault or not."""
        self._failed_in_a_row = self._failed_in_a_row + 1 if failed else 0
        if self.state is not ModelState.LOST:
            self._enter(ModelState.FAILS if self._failed_in_a_row >= self._max_failed_passes else ModelState.COMPUTES)

    def lost(self) -> None:
        """There will be no further pass."""
        self._enter(ModelState.LOST)

    def _enter(self, state: ModelState) -> None:
        if state is not self.state:
            self.state = state
            self._changed(state)
