"""The modes a request chooses between, and their numbers on the wire (spec §4, §5)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from tokbridge.errors import UnsupportedModeError
from tokbridge.v1 import teacher_pb2


class Routing(StrEnum):
    """Which student token a teacher token's bytes go to."""

    GREEDY = "greedy"
    """The longest student token that is a prefix; the paper's."""
    BPE = "bpe"
    """The first token of the student's own encoder."""


class Spanning(StrEnum):
    """How rows are corrected whose student token is longer than the teacher's."""

    REALIZED = "realized"
    """The chain along the realized bytes; the paper's."""
    LOOKAHEAD = "lookahead"
    """The teacher's next distributions resolve the realized branch; with routing `bpe` only."""


_ROUTINGS = {Routing.GREEDY: teacher_pb2.ROUTING_GREEDY, Routing.BPE: teacher_pb2.ROUTING_BPE}
_SPANNINGS = {Spanning.REALIZED: teacher_pb2.SPANNING_REALIZED, Spanning.LOOKAHEAD: teacher_pb2.SPANNING_LOOKAHEAD}
_ROUTING_BY_NUMBER: dict[int, Routing] = {number: routing for routing, number in _ROUTINGS.items()}
_SPANNING_BY_NUMBER: dict[int, Spanning] = {number: spanning for spanning, number in _SPANNINGS.items()}


def routing_to_proto(routing: Routing) -> teacher_pb2.Routing:
    """Number of a routing mode."""
    return _ROUTINGS[routing]


def spanning_to_proto(spanning: Spanning) -> teacher_pb2.Spanning:
    """Number of a spanning mode."""
    return _SPANNINGS[spanning]


def routing_from_proto(number: int) -> Routing:
    """Routing mode of a number; unspecified is greedy.

    Raises:
        UnsupportedModeError: a number this version does not know.
    """
    if number == teacher_pb2.ROUTING_UNSPECIFIED:
        return Routing.GREEDY
    if number not in _ROUTING_BY_NUMBER:
        raise UnsupportedModeError(f"routing mode {number} is not known here", field="routing")
    return _ROUTING_BY_NUMBER[number]


def spanning_from_proto(number: int) -> Spanning:
    """Spanning mode of a number; unspecified is realized.

    Raises:
        UnsupportedModeError: a number this version does not know.
    """
    if number == teacher_pb2.SPANNING_UNSPECIFIED:
        return Spanning.REALIZED
    if number not in _SPANNING_BY_NUMBER:
        raise UnsupportedModeError(f"spanning mode {number} is not known here", field="spanning")
    return _SPANNING_BY_NUMBER[number]


def known_routings(numbers: Iterable[int]) -> frozenset[Routing]:
    """The modes among these that this version knows."""
    return frozenset(_ROUTING_BY_NUMBER[number] for number in numbers if number in _ROUTING_BY_NUMBER)


def known_spannings(numbers: Iterable[int]) -> frozenset[Spanning]:
    """The modes among these that this version knows."""
    return frozenset(_SPANNING_BY_NUMBER[number] for number in numbers if number in _SPANNING_BY_NUMBER)


def check_modes(routing: Routing, spanning: Spanning) -> None:
    """Refuse the one combination that does harm (spec §5b).

    Raises:
        UnsupportedModeError: `lookahead` under `greedy`.
    """
    if spanning is Spanning.LOOKAHEAD and routing is not Routing.BPE:
        raise UnsupportedModeError("spanning `lookahead` needs routing `bpe`", field="spanning")
