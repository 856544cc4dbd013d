"""Which teachers a prompt goes to: rules in their order, weights fixed and by column, prompts that nobody takes."""

from dataclasses import replace

import pytest

from support.training import make_config, make_prompt
from tokbridge.errors import InvalidConfigError, InvalidDataError, UnroutedPromptError
from tokbridge_trainer.teachers.assignment import assign, check_columns, count_unrouted, idle_rules


def teachers(**values):
    members = {name: {"urls": [f"{name}:1"]} for name in ("maths", "code", "general")}
    given = {"members": members, "default": list(members)} | values
    given = {name: value for name, value in given.items() if value is not None}
    return make_config(teacher=None, teachers=given).teachers


def prompt(text="hello", index=0, **columns):
    messages = [{"role": "system", "content": "def of nothing"}, {"role": "user", "content": text}]
    return replace(make_prompt([1], index), messages=messages, columns=columns)


SUBJECTS = [
    {"column": "subject", "equals": "algebra", "to": ["maths"]},
    {"column": "prompt", "matches": r"\bdef \w+", "to": ["code"]},
    {"column": "level", "equals": 3, "to": ["maths", "general"]},
    {"column": "verified", "equals": True, "to": ["general"]},
]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (prompt(subject="algebra"), ["maths"]),
        (prompt("write def f(x)", subject="algebra"), ["maths"]),
        (prompt("write def f(x)"), ["code"]),
        (prompt(level=3), ["maths", "general"]),
        (prompt(verified=True), ["general"]),
        (prompt(verified=1), ["code", "maths"]),
        (prompt(subject="Algebra"), ["code", "maths"]),
    ],
)
def test_the_first_rule_that_takes_a_prompt_decides(asked, expected):
    assigned = assign(teachers(routes=SUBJECTS, default=["code", "maths"]), asked)
    assert [*assigned] == expected
    assert set(assigned.values()) == {1.0}


def test_without_rules_a_prompt_goes_to_all():
    assert [*assign(teachers(default=None), prompt())] == ["maths", "code", "general"]


def test_weights_come_from_the_configuration_or_from_a_column():
    members = {
        "a": {"urls": ["a:1"], "weight": 2.5},
        "b": {"urls": ["b:1"], "weight_column": "trust", "weight": 0.5},
    }
    mixed = teachers(members=members, default=None)
    assert assign(mixed, prompt()) == {"a": 2.5, "b": 0.5}
    assert assign(mixed, prompt(trust=4)) == {"a": 2.5, "b": 4.0}
    assert assign(mixed, prompt(trust=0)) == {"a": 2.5}


@pytest.mark.parametrize("weight", [-1, "much", float("nan"), float("inf"), True])
def test_a_weight_that_is_none_names_its_row(weight):
    mixed = teachers(members={"a": {"urls": ["a:1"], "weight_column": "trust"}}, default=None)
    with pytest.raises(InvalidDataError) as error:
        assign(mixed, prompt(index=7, trust=weight))
    assert error.value.details == {"row": 7, "column": "trust"}


def test_a_prompt_that_nobody_takes_ends_the_run_or_is_counted():
    alone = {"members": {"a": {"urls": ["a:1"], "weight_column": "trust"}}, "default": None}
    prompts = [prompt(trust=1), prompt(index=8, trust=0)]
    with pytest.raises(UnroutedPromptError, match="its weight is 0 for a") as error:
        count_unrouted(teachers(**alone), prompts)
    assert error.value.details == {"row": 8}
    assert count_unrouted(teachers(**alone, unrouted="skip"), prompts) == 1
    rule = [{"column": "subject", "equals": "algebra", "to": ["maths", "code", "general"]}]
    with pytest.raises(UnroutedPromptError, match="no rule takes it"):
        assign(teachers(routes=rule, default=None), prompt())


def test_rules_that_decide_about_no_prompt_are_named():
    rules = [
        {"column": "level", "equals": 3, "to": ["maths"]},
        {"column": "subject", "matches": "^alg", "to": ["general"]},
        {"column": "level", "equals": "4", "to": ["code"]},
        {"column": "subject", "equals": "algebra", "to": ["maths"]},
    ]
    prompts = [prompt(level="3", subject="algebra"), prompt(level="4"), prompt()]
    assert idle_rules(teachers(routes=rules, default=["code"]), prompts) == [
        "rule 1 takes no prompt: `level` equals 3",
        "rule 4 takes no prompt: `subject` equals 'algebra'",
    ]


def test_a_column_that_no_prompt_has_is_a_slip():
    with pytest.raises(InvalidDataError, match="subject"):
        count_unrouted(teachers(routes=SUBJECTS, default=["code"]), [prompt(level=3, verified=True)])


def test_columns_that_do_not_travel_are_refused():
    routed = teachers(routes=SUBJECTS)
    assert routed.columns == {"subject", "level", "verified"}
    check_columns(routed, frozenset({"subject", "level", "verified", "other"}))
    with pytest.raises(InvalidConfigError, match=r"level, verified.*prompts\.columns"):
        check_columns(routed, frozenset({"subject"}))
