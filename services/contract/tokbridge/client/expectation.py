"""What a client demands of a teacher before it sends anything: pure checks on a description."""

from __future__ import annotations

from dataclasses import dataclass

import tokbridge
from tokbridge.description import TeacherDescription
from tokbridge.errors import LimitExceededError, TeacherMismatchError, UnsupportedModeError
from tokbridge.modes import Routing, Spanning, check_modes
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest


@dataclass(frozen=True)
class TeacherExpectation:
    """The teacher a user means; None: any."""

    model: str | None = None
    vocabulary_fingerprint: str | None = None
    routing: Routing | None = None
    spanning: Spanning | None = None

    def check(self, teacher: TeacherDescription) -> None:
        """Compare with who answered.

        Raises:
            TeacherMismatchError: another model, vocabulary or an incompatible version.
            UnsupportedModeError: it does not offer the mode.
        """
        check_version(teacher.version)
        for name in ("model", "vocabulary_fingerprint"):
            expected, actual = getattr(self, name), getattr(teacher, name)
            if expected not in (None, actual):
                raise _mismatch(name, expected, actual)
        _check_offered("routing", self.routing, teacher.routings)
        _check_offered("spanning", self.spanning, teacher.spannings)


def check_version(version: str, own: str = tokbridge.__version__) -> None:
    """Versions agree in their major number, and before 1.0 in the minor one too.

    Raises:
        TeacherMismatchError: they do not.
    """
    if _compatibility(version) != _compatibility(own):
        raise TeacherMismatchError(
            f"the teacher runs tokbridge {version or '(no version)'} and this client {own}; install the same on both",
            teacher_version=version,
            client_version=own,
        )


def check_student_fits(student: StudentRegistration, teacher: TeacherDescription) -> None:
    """Raise `LimitExceededError` when the student's vocabulary is larger than the teacher allows."""
    vocabulary = student.vocabulary
    content_bytes = int(vocabulary.lengths.clip(min=0).sum(dtype=int))
    _check_limit("max_vocabulary_size", vocabulary.size, teacher.limits.max_vocabulary_size)
    _check_limit("max_vocabulary_bytes", content_bytes, teacher.limits.max_vocabulary_bytes)


def check_request(request: ScoreRequest, teacher: TeacherDescription) -> None:
    """Refuse here what the teacher would refuse, before any byte is sent.

    Raises:
        LimitExceededError: the response or top-k is over the teacher's limit.
        UnsupportedModeError: a mode it does not offer.
    """
    check_modes(Routing(request.routing), Spanning(request.spanning))
    _check_offered("routing", request.routing, teacher.routings)
    _check_offered("spanning", request.spanning, teacher.spannings)
    _check_limit("max_top_k", request.top_k, teacher.limits.max_top_k)
    _check_limit("max_response_bytes", len(request.response), teacher.limits.max_response_bytes)


def _compatibility(version: str) -> tuple[str, ...]:
    major, _, rest = version.partition(".")
    return (major, rest.partition(".")[0]) if major == "0" else (major,)


def _check_offered(name: str, mode: str | None, offered: frozenset[Routing] | frozenset[Spanning]) -> None:
    if mode is not None and mode not in offered:
        raise UnsupportedModeError(
            f"the teacher offers {name} {', '.join(sorted(offered)) or 'none'}, not `{mode}`", field=name
        )


def _check_limit(name: str, value: int, limit: int) -> None:
    if value > limit:
        raise LimitExceededError(
            f"{value} is over the teacher's `{name}` of {limit}", name=name, value=value, limit=limit
        )


def _mismatch(name: str, expected: object, actual: object) -> TeacherMismatchError:
    return TeacherMismatchError(
        f"the teacher's `{name}` is {_shown(actual)}, not {_shown(expected)}",
        field=name,
        expected=_shown(expected),
        actual=_shown(actual),
    )


def _shown(value: object) -> str:
    return str(sorted(value)) if isinstance(value, frozenset) else str(value)
