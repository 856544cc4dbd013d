"""Whether the replicas of a teacher are replicas: facts and probe rows of each instance, compared with the first one's.

Pure; it holds what the first instance said and raises when another one says something else. After a restart the new
instance is compared as any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokbridge.client.probe import difference
from tokbridge.description import TeacherDescription
from tokbridge.errors import InvalidConfigError, TeacherMismatchError
from tokbridge.targets import TargetRows

DEFAULT_MAX_DIVERGENCE = 0.005
"""Nats. See `docs/decisions/0007-replicas.md` for what lies on either side of it."""

ProbeAnswer = TargetRows | str
"""Rows, or the code of the error with which the teacher refused the probe."""


@dataclass(frozen=True)
class _First:
    name: str
    teacher: TeacherDescription
    answer: ProbeAnswer | None


class Agreement:
    """What the instances of one teacher have in common."""

    def __init__(self, max_divergence: float | None) -> None:
        """`max_divergence`: bound on `ProbeDifference.divergence`; None: rows are not compared."""
        if max_divergence is not None and not max_divergence >= 0:
            raise InvalidConfigError("`max_divergence` must be 0 or more", field="max_divergence")
        self._max_divergence = max_divergence
        self._first: _First | None = None

    @property
    def needs_probe(self) -> bool:
        """Whether an instance has to answer the probe before it is admitted."""
        return self._max_divergence is not None

    def check(self, name: str, teacher: TeacherDescription) -> None:
        """Compare an instance's facts with the first one's.

        Raises:
            TeacherMismatchError: names both and the first fact that differs.
        """
        if self._first is None:
            return
        for field, expected in self._first.teacher.identity.items():
            actual = teacher.identity[field]
            if actual != expected:
                raise TeacherMismatchError(
                    f"the teacher's `{field}` is {_shown(actual)} at {name}, not {_shown(expected)} "
                    f"as at {self._first.name}",
                    field=field,
                    expected=_shown(expected),
                    actual=_shown(actual),
                    **self._names(name),
                )

    def admit(self, name: str, teacher: TeacherDescription, answer: ProbeAnswer | None) -> None:
        """Take an instance into the circle: its facts are those of the first, and its rows are within the bound.

        Raises:
            TeacherMismatchError: they are not.
        """
        self.check(name, teacher)
        if self._first is None:
            self._first = _First(name, teacher, answer)
        else:
            self._compare(name, self._first.answer, answer)

    def _compare(self, name: str, first: ProbeAnswer | None, answer: ProbeAnswer | None) -> None:
        if first is None or answer is None or self._max_divergence is None:
            return
        if isinstance(first, str) or isinstance(answer, str):
            if _outcome(first) != _outcome(answer):
                raise TeacherMismatchError(
                    f"{name} and {self._names(name)['reference']} do not answer the probe alike: "
                    f"{_outcome(answer)} here, {_outcome(first)} there",
                    field="probe",
                    **self._names(name),
                )
            return
        found = difference(first, answer)
        if found.divergence > self._max_divergence:
            raise TeacherMismatchError(
                f"{name} and {self._names(name)['reference']} are not replicas of one teacher: their rows of one "
                f"response diverge by {found.divergence:.3g} nats, more than {self._max_divergence:g}",
                field="probe",
                divergence=found.divergence,
                largest_log_prob_difference=found.log_prob,
                **self._names(name),
            )

    def _names(self, name: str) -> dict[str, str]:
        return {"replica": name, "reference": self._first.name if self._first else name}


def _outcome(answer: ProbeAnswer) -> str:
    return answer if isinstance(answer, str) else "rows"


def _shown(value: object) -> str:
    return str(sorted(value)) if isinstance(value, frozenset) else str(value)
