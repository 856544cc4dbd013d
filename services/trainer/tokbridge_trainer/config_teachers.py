"""The teachers of a training configuration: one, or several by name with rules, weights and fallbacks.

Only pydantic and the standard library are imported. The document of a `teachers_file` is the section `teachers`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tokbridge_trainer.config_sections import Section, TemplateArguments

Address = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
TeacherName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]

PROMPT_COLUMN = "prompt"
"""A column that every prompt has: the text of its last message."""
ONLY_TEACHER = "teacher"
"""Name of the teacher in a run that has one."""


class TlsConfig(Section):
    """Certificates towards the teacher, PEM files that the driver reads; with any of them the channel is encrypted."""

    ca: Path | None = None
    """Authorities that may vouch for the teacher; unset: those that the system trusts."""
    certificate: Path | None = None
    """The client's own certificate, for a teacher that asks for one…"""
    key: Path | None = None
    """…and its private key."""

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` go together")
        return self


class TeacherService(Section):
    """Where a teacher is and what is asked of it."""

    urls: list[Address] = Field(min_length=1)
    """Replicas of one teacher: `host:port`, `grpc://host:port` (plain) or `grpcs://host:port` (TLS). They share the
    responses, those of one prompt together, and stand in for one another."""
    tls: TlsConfig = TlsConfig()
    api_key_file: Path | None = None
    """A file with the teacher's API key. The key itself has no place in a configuration."""
    api_key_env: str | None = None
    """Or the environment variable that holds it."""
    max_replica_divergence: float | None = Field(default=0.005, ge=0.0)
    """How far the rows of two replicas, or of a teacher before and after a restart, may be apart on one short response:
    Jensen-Shannon, in nats; unset: not compared."""
    timeout_s: float = Field(default=600.0, gt=0.0)
    """Over all attempts for one response, on all replicas."""
    max_silence_s: float | None = Field(default=None, gt=0.0)
    """A replica that takes calls and has sent nothing to any of them for so long is given up while another can be
    asked; unset: a third of `timeout_s`."""
    routing: Literal["greedy", "bpe"] = "greedy"
    spanning: Literal["realized", "lookahead"] = "realized"
    top_k: int = Field(default=0, ge=0, le=65534)
    """Cells kept a row; 0: the service's default."""
    mass: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that the kept cells cover; 0: the service's default."""
    max_in_flight: int = Field(default=64, ge=1)
    """Responses that wait for each of the `urls` at once, on average."""
    chat_template_kwargs: TemplateArguments | None = None
    """Arguments of the teacher's chat template; unset: those of the student (`chat_template_kwargs`)."""

    @model_validator(mode="after")
    def _check_one_key(self) -> Self:
        if self.api_key_file is not None and self.api_key_env is not None:
            raise ValueError("give either `api_key_file` or `api_key_env`")
        return self


class TeacherConfig(TeacherService):
    """The teacher of a run that has one."""

    on_failure: Literal["raise", "drop"] = "raise"
    """`drop`: a response whose scoring failed for good is left out, counted by reason and shown."""


def _check_weight_column(name: str) -> str:
    if name == PROMPT_COLUMN:
        raise ValueError(f"`{PROMPT_COLUMN}` is the text of the prompt, no weight")
    return name


class MemberConfig(TeacherService):
    """One of several teachers."""

    weight: float = Field(default=1.0, gt=0.0)
    """Its share where several score the same response, relative to theirs."""
    weight_column: Annotated[str, AfterValidator(_check_weight_column)] | None = None
    """A column of the prompts that holds the weight, 0 for a prompt that it is not asked about; where the column is
    empty, `weight` counts."""
    model: str | None = None
    """The model that is meant, as the teacher names itself; unset: whichever answers."""
    on_failure: Literal["raise", "wait", "skip", "others"] = "raise"
    """What becomes of a response that it fails to score within `timeout_s`. `raise`: the run ends. `wait`: asked again
    for as long as the teacher is out of reach; what it refuses ends the run. `skip`: the response is left out.
    `others`: the response goes on with the other teachers, left out if there is none. All are counted."""

    @model_validator(mode="after")
    def _check_modes(self) -> Self:
        if self.spanning == "lookahead" and self.routing != "bpe":
            raise ValueError("spanning: lookahead needs routing: bpe")
        return self


class RouteConfig(Section):
    """A rule: prompts whose column has this value, or holds a match, go to these teachers."""

    column: str
    """`prompt` is the text of the last message; a prompt that lacks the column is not taken by the rule."""
    equals: str | int | float | bool | None = None
    matches: re.Pattern[str] | None = None
    """A regular expression, searched for anywhere in the text; `^` and `$` bind it."""
    to: list[TeacherName] = Field(min_length=1)
    """Teachers by name; several are mixed."""

    @model_validator(mode="after")
    def _check_one_condition(self) -> Self:
        if (self.equals is None) == (self.matches is None):
            raise ValueError("give either `equals` or `matches`")
        return self


class TeachersConfig(Section):
    """Several teachers, and who scores what."""

    members: dict[TeacherName, MemberConfig] = Field(min_length=1)
    """By name."""
    routes: list[RouteConfig] = Field(default_factory=list)
    """The first rule that takes a prompt decides."""
    default: list[TeacherName] = Field(default_factory=lambda given: _default_names(given))
    """Teachers of the prompts that no rule takes; unset: all of them where there are no rules, else none."""
    unrouted: Literal["error", "skip"] = "error"
    """What becomes of a prompt that goes to no teacher: it ends the run, or its responses are left out and counted."""
    top_k: int = Field(default=0, ge=0, le=65534)
    """Cells kept a row after mixing; 0: all that any teacher sent."""
    mass: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that the cells kept after mixing cover; 0: all."""
    drain_s: float = Field(default=60.0, ge=0.0)
    """How long a teacher that is no longer listed may work on what it was given; then others are asked for it."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        asked: set[str] = set()
        for names in (*(route.to for route in self.routes), self.default):
            if unknown := sorted(set(names) - self.members.keys()):
                raise ValueError(f"there is no teacher {', '.join(unknown)}; there are {', '.join(self.members)}")
            if len(set(names)) < len(names):
                raise ValueError(f"a teacher stands twice in {', '.join(names)}")
            asked.update(names)
        if idle := sorted(self.members.keys() - asked):
            raise ValueError(f"no rule sends anything to {', '.join(idle)}")
        return self

    @property
    def columns(self) -> frozenset[str]:
        """Columns of the prompts that rules and weights read, `prompt` aside."""
        weights = (member.weight_column for member in self.members.values())
        named = (*(route.column for route in self.routes), *weights)
        return frozenset(name for name in named if name not in (None, PROMPT_COLUMN))

    @classmethod
    def of_one(cls, teacher: TeacherConfig) -> Self:
        """The only teacher of a run as a list of one."""
        service = teacher.model_dump(exclude={"on_failure"})
        on_failure = "skip" if teacher.on_failure == "drop" else "raise"
        return cls(members={ONLY_TEACHER: MemberConfig(**service, on_failure=on_failure)})


def _default_names(given: dict[str, Any]) -> list[str]:
    """Of the fields that have been read and are right."""
    return [] if given.get("routes") else [*given.get("members", {})]
