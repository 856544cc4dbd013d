"""The sections `teacher`, `teachers` and `teachers_file`: one of them, names that exist, weights above 0."""

from datetime import date

import pytest
import yaml

from support.training import make_config
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config_loading import dump_config, parse_config
from tokbridge_trainer.config_teachers import TeacherConfig, TeachersConfig, TeacherService
from tokbridge_trainer.teachers.listing import configured_teachers

A, B = {"urls": ["a:1"]}, {"urls": ["b:1"]}


def several(**values):
    return make_config(teacher=None, teachers={"members": {"a": A, "b": B}} | values)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"teacher": A, "teachers": {"members": {"b": B}}},
        {"teachers": {"members": {"b": B}}, "teachers_file": "teachers.yaml"},
        {"teacher": A, "teachers_file": "teachers.yaml"},
    ],
)
def test_a_run_has_one_of_the_three(given):
    with pytest.raises(InvalidConfigError, match="give one of"):
        make_config(**({"teacher": None} | given))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"members": {}}, "members"),
        ({"members": {"two words": A}}, "pattern"),
        ({"members": {"a": A | {"weight": 0}}}, r"a\.weight"),
        ({"members": {"a": A | {"weight": -1.0}}}, r"a\.weight"),
        ({"members": {"a": A | {"on_failure": "drop"}}}, r"a\.on_failure"),
        ({"members": {"a": A | {"spanning": "lookahead"}}}, "needs routing: bpe"),
        ({"members": {"a": A | {"weight_column": "prompt"}}}, r"a\.weight_column"),
        ({"members": {"a": A | {"chat_template_kwargs": {"at": date(2024, 7, 26)}}}}, r"a\.chat_template_kwargs"),
        ({"default": ["c"]}, "there is no teacher c"),
        ({"default": ["a", "b", "a"]}, "twice"),
        ({"default": []}, "no rule sends anything to a, b"),
        ({"default": None}, "default"),
        ({"default": ["a"]}, "no rule sends anything to b"),
        ({"routes": [{"column": "x", "equals": "1", "to": ["c"]}]}, "there is no teacher c"),
        ({"routes": [{"column": "x", "equals": "1", "to": []}]}, "to"),
        ({"routes": [{"column": "x", "to": ["a"]}]}, "either `equals` or `matches`"),
        ({"routes": [{"column": "x", "equals": 1, "matches": "1", "to": ["a", "b"]}]}, "either `equals` or `matches`"),
        ({"routes": [{"column": "x", "matches": "(", "to": ["a", "b"]}]}, "matches"),
        ({"unrouted": "ignore"}, "unrouted"),
        ({"drain_s": -1}, "drain_s"),
    ],
)
def test_wrong_lists_are_refused(values, message):
    with pytest.raises(InvalidConfigError, match=message) as error:
        several(**values)
    assert "factory" not in error.value.message


def test_the_single_teacher_has_no_fields_of_a_list():
    with pytest.raises(InvalidConfigError, match=r"teacher\.weight"):
        make_config(teacher=A | {"weight": 2})


@pytest.mark.parametrize(("on_failure", "fallback"), [("raise", "raise"), ("drop", "skip")])
def test_one_teacher_is_a_list_of_one(on_failure, fallback):
    fields = {"urls": ["a:1", "a:2"], "timeout_s": 3.0, "top_k": 7, "chat_template_kwargs": {"x": 1}, "mass": 0.5}
    teacher = TeacherConfig(**fields, on_failure=on_failure)
    (member,) = TeachersConfig.of_one(teacher).members.values()
    assert {name: getattr(member, name) for name in TeacherService.model_fields} == {
        name: getattr(teacher, name) for name in TeacherService.model_fields
    }
    assert member.on_failure == fallback


def test_the_dump_of_several_loads_to_the_same_configuration():
    config = several(routes=[{"column": "x", "matches": "^a|b$", "to": ["a", "b"]}], default=["b"])
    assert parse_config(yaml.safe_load(dump_config(config))) == config


def test_rules_and_weights_name_the_columns_that_travel():
    members = {"a": A | {"weight_column": "trust"}, "b": B}
    routes = [{"column": "prompt", "matches": "x", "to": ["a"]}, {"column": "kind", "equals": 1, "to": ["b"]}]
    config = make_config(
        teacher=None,
        teachers={"members": members, "routes": routes},
        prompts={"files": ["p.jsonl"], "columns": ["level"]},
    )
    assert config.prompt_columns == {"trust", "kind", "level"}


def test_a_file_holds_the_section_and_keys_lie_beside_it(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    path = tmp_path / "teachers.yaml"
    path.write_text("members:\n  a: {urls: ['a:1'], api_key_file: key}\n  b: {urls: ['b:1']}\n")
    found = configured_teachers(make_config(teacher=None, teachers_file=str(path)))
    assert found.config == several(members={"a": A | {"api_key_file": "key"}, "b": B}).teachers
    assert found.credentials["a"].api_key == "secret"
    assert found.credentials["b"].api_key is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("members: [", "is not YAML"),
        ("- a", "must hold a mapping"),
        ("members: {a: {urls: []}}", r"members\.a\.urls"),
        ("members: {a: {urls: ['a:1'], weight_column: trust}}", r"trust.*prompts\.columns"),
        ("members: {a: {urls: ['a:1'], api_key_file: missing}}", "api_key_file"),
        ("members: {a: {urls: ['a:1'], api_key_file: \"\\0\"}}", "api_key_file"),
        ("members: {a: {urls: ['a:1']}, a: {urls: ['b:1']}}", "the key 'a' stands twice"),
    ],
)
def test_a_wrong_file_is_a_typed_error(tmp_path, content, message):
    path = tmp_path / "teachers.yaml"
    path.write_text(content)
    with pytest.raises(InvalidConfigError, match=message):
        configured_teachers(make_config(teacher=None, teachers_file=str(path)))


def test_a_missing_file_is_a_typed_error(tmp_path):
    with pytest.raises(InvalidConfigError, match="cannot read"):
        configured_teachers(make_config(teacher=None, teachers_file=str(tmp_path / "none.yaml")))
