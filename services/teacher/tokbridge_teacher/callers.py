"""Who calls: the name that work is accounted to, and its weight against other callers. Knows no key and no protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """One account; two callers with one name share its part of the service."""

    name: str
    share: float = 1.0
    """Weight against other callers, above 0: twice the share, twice the tokens while both have work."""

    def __post_init__(self) -> None:
        if not 0 < self.share < float("inf"):
            raise ValueError(f"a caller's share is a positive number, not {self.share}")


ANONYMOUS = Caller("anonymous")
"""Everybody, where no one has to say who calls; then there is no other caller."""
