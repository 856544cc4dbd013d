"""How a response is to be scored: routing, spanning mode, truncation. Values only, checked once, here.

Knows neither tables nor tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokbridge.errors import InvalidRequestError, UnsupportedModeError
from tokbridge.modes import Routing, Spanning

MAX_TOP_K = 65_534
"""The wire counts the cells of a row in 16 bits, and the emitted token's cell comes on top."""


@dataclass(frozen=True)
class ScoringOptions:
    """Modes and limits of one response (spec §4–§6)."""

    routing: Routing
    spanning: Spanning
    top_k: int
    """Cells kept a row at most; the emitted token's cell is kept whatever its rank."""
    mass: float
    """Cells are kept until they cover this probability; 1.0: no limit."""
    lookahead_tokens: int = 64
    """Teacher tokens looked at per position under `lookahead`, the realized one among them."""
    lookahead_floor: float = 1e-6
    """Moves of less probability than this are not looked up; they stay in the head cell."""

    def __post_init__(self) -> None:
        """Refuse what no plan could be built for.

        Raises:
            UnsupportedModeError: an unknown mode.
            InvalidRequestError: a limit out of its range.
        """
        if self.routing not in list(Routing) or self.spanning not in list(Spanning):
            raise UnsupportedModeError(f"no such combination of modes: {self.routing}, {self.spanning}")
        if not 1 <= self.top_k <= MAX_TOP_K:
            raise InvalidRequestError(f"top_k must be in 1 … {MAX_TOP_K}, not {self.top_k}", field="top_k")
        if not 0.0 < self.mass <= 1.0:
            raise InvalidRequestError(f"mass must be in (0, 1], not {self.mass}", field="mass")
        if self.lookahead_tokens < 1:
            raise InvalidRequestError("lookahead_tokens must be at least 1", field="lookahead_tokens")

    @property
    def looks_ahead(self) -> bool:
        """Whether mass is resolved with the following teacher distributions (spec §5b)."""
        return self.spanning == Spanning.LOOKAHEAD

    @property
    def num_cells(self) -> int:
        """Cells to know of a row before it is corrected: `top_k` and the head cell, the one that can lose its place;
        under `lookahead` as many more as can be gained from one position.
        """
        return self.top_k + 1 + (self.lookahead_tokens if self.looks_ahead else 0)
