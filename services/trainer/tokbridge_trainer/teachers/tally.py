"""What happened between a step's samples and each of its teachers, counted. No clock, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tokbridge.description import TeacherDescription
from tokbridge.results import ScoreResult

Fields = dict[str, float | str]


@dataclass
class TeacherTally:
    """One teacher's part in one step."""

    descriptions: dict[str, TeacherDescription] = field(default_factory=dict)
    """Who was asked under this name, by instance; more than one in the step of a change."""
    requests: int = 0
    """Responses it was asked about, each time counted."""
    scored: int = 0
    tokens: int = 0
    """Response tokens that it scored."""
    waits_s: list[float] = field(default_factory=list)
    """Seconds from the question to the rows, of each scored response."""
    failures: Counter[str] = field(default_factory=Counter)
    """Questions that ended without rows, by error code."""
    asked_again: int = 0
    """Failures after which `wait` asked again."""
    is_waited_for: bool = False
    """Whether there was one, and people have been told."""
    resent: int = 0
    """Responses taken back from it when it left the list, and given to the present one."""
    skipped: int = 0
    """Responses left out because it failed."""
    left_to_others: int = 0
    """Responses whose targets were made without it because it failed."""
    emitted_rows: int = 0
    emitted_log_prob: float = 0.0
    """Σ of the log-probability of the emitted token over its rows, those of mass 0 aside."""

    def asked(self, teacher: TeacherDescription) -> None:
        """A question goes out."""
        self.requests += 1
        self.descriptions[teacher.instance_id] = teacher

    def answered(self, result: ScoreResult, seconds: float) -> None:
        """Rows came back."""
        self.scored += 1
        self.tokens += result.rows.num_rows
        self.waits_s.append(seconds)
        emitted = result.rows.emitted_log_prob[np.isfinite(result.rows.emitted_log_prob)]
        self.emitted_rows += len(emitted)
        self.emitted_log_prob += float(emitted.sum(dtype=np.float64))

    def metrics(self) -> Iterator[tuple[str, float | str]]:
        """Name and value; a mean over nothing is left out."""
        for name in ("requests", "scored", "tokens", "asked_again", "resent", "skipped", "left_to_others"):
            yield name, float(getattr(self, name))
        yield "failures", float(self.failures.total())
        for code, count in sorted(self.failures.items()):
            yield f"failures/{code}", float(count)
        if self.waits_s:
            yield "wait_s/mean", sum(self.waits_s) / len(self.waits_s)
            yield "wait_s/max", max(self.waits_s)
        if self.emitted_rows:
            yield "emitted_log_prob", self.emitted_log_prob / self.emitted_rows
        who = self.descriptions.values()
        yield "model", ", ".join(dict.fromkeys(teacher.model for teacher in who))
        yield "vocabulary", ", ".join(dict.fromkeys(teacher.vocabulary_fingerprint[:12] for teacher in who))


@dataclass
class StepTally:
    """All teachers' parts in one step."""

    teachers: dict[str, TeacherTally] = field(default_factory=dict)
    mixed_rows: int = 0
    """Rows with a target of responses that more than one teacher scored…"""
    partial_rows: int = 0
    """…those of them that some of these teachers have no target for."""

    def of(self, name: str) -> TeacherTally:
        """The part of one teacher."""
        return self.teachers.setdefault(name, TeacherTally())

    def metrics(self) -> Fields:
        """Flat names, `teachers/NAME/…`."""
        metrics: Fields = {}
        for name, tally in sorted(self.teachers.items()):
            metrics |= {f"teachers/{name}/{key}": value for key, value in tally.metrics()}
        if self.mixed_rows:
            metrics |= {"mixture/rows": float(self.mixed_rows), "mixture/partial_rows": float(self.partial_rows)}
        return metrics
