"""The thinking seam: which thinking opening stands between the teacher's prompt and the content (spec §3.2).

g is the text of a generation prompt from its first thinking tag on: g_s the student's, g_t the teacher's. The text that
both must agree on is A = g_s ⊕ x, x the response. The module is pure text; it renders nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tokbridge.chat_template import THINKING_TAGS

_OPENINGS = tuple(tag for tag in THINKING_TAGS if "/" not in tag)
_CLOSINGS = tuple(tag for tag in THINKING_TAGS if "/" in tag)


class Seam(StrEnum):
    """How a seam was settled."""

    NONE = "none"
    """Neither generation prompt has a thinking tag."""
    SHARED = "shared"
    """Both end in the same text."""
    CONTEXT = "context"
    """The rest of g_s was added to the teacher's prompt."""
    GIVEN = "given"
    """The teacher's prompt holds the first bytes of the response: they are given."""
    SWITCHED_OFF = "switched_off"
    """The response has no opening: the teacher's template was rendered with thinking off."""
    CUT = "cut"
    """The teacher's opening was cut off its prompt and the student's put in its place."""


@dataclass(frozen=True)
class SettledSeam:
    """What to do with the teacher's prompt, which ends in g_t."""

    seam: Seam
    keeps_teacher_tail: bool
    """Whether g_t stays."""
    context: str = ""
    """Text to add behind it."""
    given_bytes: int = 0
    """Bytes of the response that g_t already holds."""


def lacks_opening(student_tail: str, teacher_tail: str, response: bytes) -> bool:
    """Case (iii): A neither opens thinking nor begins with what the teacher's generation prompt ends in."""
    agreed = student_tail.encode() + response
    has_opening = agreed.lstrip().startswith(tuple(tag.encode() for tag in _OPENINGS))
    return not has_opening and not agreed.startswith(teacher_tail.encode())


def settle(student_tail: str, teacher_tail: str, response: bytes) -> SettledSeam:
    """Cases (i), (ii) and (iv): keep g_t where A begins with it, else cut it."""
    shared = len(teacher_tail.encode())
    within = shared - len(student_tail.encode())
    if not (student_tail.encode() + response).startswith(teacher_tail.encode()):
        return SettledSeam(Seam.CUT, keeps_teacher_tail=False, context=student_tail)
    if within > 0:
        return SettledSeam(Seam.GIVEN, keeps_teacher_tail=True, given_bytes=within)
    if within == 0:
        return SettledSeam(Seam.SHARED if shared else Seam.NONE, keeps_teacher_tail=True)
    return SettledSeam(Seam.CONTEXT, keeps_teacher_tail=True, context=student_tail[len(teacher_tail) :])


def settle_switched_off(student_tail: str, off_tail: str) -> SettledSeam | None:
    """Case (iii): what to add to a prompt with thinking off, which ends in `off_tail`; None if it is still open."""
    if off_tail.startswith(_OPENINGS) and not any(tag in off_tail for tag in _CLOSINGS):
        return None
    if student_tail.startswith(off_tail):
        return SettledSeam(Seam.SWITCHED_OFF, keeps_teacher_tail=True, context=student_tail[len(off_tail) :])
    closes = student_tail.startswith(_CLOSINGS) and any(tag in off_tail for tag in _CLOSINGS)
    return SettledSeam(Seam.SWITCHED_OFF, keeps_teacher_tail=True, context="" if closes else student_tail)
