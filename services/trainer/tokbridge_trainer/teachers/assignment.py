"""Which teachers score a prompt, and with what weights: pure functions of its columns and the list of teachers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokbridge.errors import InvalidConfigError, InvalidDataError, UnroutedPromptError
from tokbridge_trainer.config_teachers import PROMPT_COLUMN, MemberConfig, RouteConfig, TeachersConfig
from tokbridge_trainer.samples import ColumnValue, Prompt


def assign(teachers: TeachersConfig, prompt: Prompt) -> dict[str, float]:
    """Teachers of a prompt by name with their weights, all above 0, in the order of the first rule that takes it.

    Raises:
        UnroutedPromptError: it goes to none.
        InvalidDataError: its weight for a teacher is not a number of at least 0.
    """
    names = next((route.to for route in teachers.routes if _takes(route, prompt)), teachers.default)
    weights = {name: _weight(teachers.members[name], prompt) for name in names}
    asked = {name: weight for name, weight in weights.items() if weight > 0}
    if not asked:
        why = f"its weight is 0 for {', '.join(names)}" if names else "no rule takes it, and there is no `default`"
        raise UnroutedPromptError(f"the prompt of row {prompt.index} goes to no teacher: {why}", row=prompt.index)
    return asked


def check_columns(teachers: TeachersConfig, carried: frozenset[str]) -> None:
    """Raise `InvalidConfigError` if rules or weights read columns that do not travel with the prompts."""
    if missing := sorted(teachers.columns - carried):
        raise InvalidConfigError(
            f"rules or weights read {', '.join(missing)}; name such columns in `prompts.columns`, so that they travel "
            "with the prompts",
            field="prompts.columns",
        )


def count_unrouted(teachers: TeachersConfig, prompts: Sequence[Prompt]) -> int:
    """Prompts that go to no teacher, where they may be left out.

    Raises:
        UnroutedPromptError: there is one, and `unrouted` is `error`.
        InvalidDataError: a weight is no number, or no prompt at all has a column that is read.
    """
    has = frozenset[str]().union(*(prompt.columns for prompt in prompts))
    if missing := sorted(teachers.columns - has):
        raise InvalidDataError(f"no prompt has a column {', '.join(missing)}", column=missing[0])
    return sum(_is_unrouted(teachers, prompt) for prompt in prompts)


def idle_rules(teachers: TeachersConfig, prompts: Sequence[Prompt]) -> list[str]:
    """A line for each rule that decides about no prompt: a slip perhaps, such as the number 1 for the text `1`."""
    decisive = {
        next((number for number, route in enumerate(teachers.routes, 1) if _takes(route, prompt)), 0)
        for prompt in prompts
    }
    return [
        f"rule {number} takes no prompt: `{route.column}` "
        + (f"equals {route.equals!r}" if route.matches is None else f"matches {route.matches.pattern!r}")
        for number, route in enumerate(teachers.routes, 1)
        if number not in decisive
    ]


def _is_unrouted(teachers: TeachersConfig, prompt: Prompt) -> bool:
    try:
        assign(teachers, prompt)
    except UnroutedPromptError:
        if teachers.unrouted == "error":
            raise
        return True
    return False


def _takes(route: RouteConfig, prompt: Prompt) -> bool:
    value = _value(prompt, route.column)
    if value is None:
        return False
    if route.matches is not None:
        return route.matches.search(str(value)) is not None
    # Python counts True as 1; a rule does not.
    return value == route.equals and isinstance(value, bool) == isinstance(route.equals, bool)


def _value(prompt: Prompt, column: str) -> ColumnValue | None:
    if column == PROMPT_COLUMN:
        return str(prompt.messages[-1].get("content") or "")
    return prompt.columns.get(column)


def _weight(member: MemberConfig, prompt: Prompt) -> float:
    value = None if member.weight_column is None else prompt.columns.get(member.weight_column)
    if value is None:
        return member.weight
    if isinstance(value, str | bool) or not (math.isfinite(value) and value >= 0):
        raise InvalidDataError(
            f"row {prompt.index}: the weight in `{member.weight_column}` is {value!r}, not a number of at least 0",
            row=prompt.index,
            column=str(member.weight_column),
        )
    return float(value)
