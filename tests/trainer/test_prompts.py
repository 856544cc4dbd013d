"""Prompts from files: columns, limits, order."""

import dataclasses
import datetime
import json

import datasets
import pytest

from support.training import make_config
from tokbridge.errors import InvalidDataError
from tokbridge_trainer.prompts import (
    columns_of,
    conversation_of,
    load_evaluation_prompts,
    load_prompts,
    read_rows,
    tools_of,
)
from tokbridge_trainer.student_text import StudentText
from tokbridge_trainer.written_responses import load_warm_start

BROKEN_FILES = ("empty.jsonl", "blank.jsonl", "latin.jsonl", "empty.parquet", "broken.parquet", "folder.jsonl")
USER = {"role": "user", "content": "hello"}


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config_for(folder, files, **values):
    return make_config(folder, prompts={"files": files, "shuffle": False}, **values)


def test_prompts_are_rendered_with_the_students_template(tmp_path, student_folder, student_text):
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "hello"}, {"prompt": "again"}])
    prompts = load_prompts(config_for(student_folder, [file]), student_text).prompts
    ids = prompts[0].token_ids
    control = student_text.profile.control_ids
    assert ids[0] == control["<|turn|>"]
    text = student_text.profile.vocabulary.content_of(ids).decode()
    assert text == "user\nhello\nassistant\n"
    assert [prompt.index for prompt in prompts] == [0, 1]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "hello"}, [USER]),
        ({"prompt": [USER]}, [USER]),
        ({"messages": [USER]}, [USER]),
        ({"messages": [USER, {"role": "assistant", "content": "an answer"}]}, [USER]),
        ({"messages": [USER | {"name": None}]}, [USER]),
        ({"messages": [{"role": "tool", "content": None}]}, [{"role": "tool", "content": None}]),
    ],
)
def test_columns_become_conversations(row, expected):
    assert conversation_of(row, 0) == expected


@pytest.mark.parametrize("row", [{}, {"text": "x"}, {"messages": []}, {"prompt": 3}, {"messages": [{"content": "x"}]}])
def test_rows_that_are_no_conversation_name_their_index(row):
    with pytest.raises(InvalidDataError) as error:
        conversation_of(row, 7)
    assert error.value.details["row"] == 7


def test_tools_are_a_list_or_json_text():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert tools_of({"tools": tools}, 0) == tools_of({"tools": json.dumps(tools)}, 0) == tools
    assert tools_of({"tools": ""}, 0) is None
    assert tools_of({"tools": "null"}, 0) is tools_of({"tools": []}, 0) is None


@pytest.mark.parametrize("tools", [5, "5", "{", '{"a": 1}', {"a": 1}, ["f"], [{"a": datetime.date(2024, 1, 2)}]])
def test_tools_of_another_form_name_their_row(tools):
    with pytest.raises(InvalidDataError) as error:
        tools_of({"tools": tools}, 7)
    assert error.value.details == {"row": 7, "column": "tools"}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "narrator", "content": "x"}, "no role narrator"),
        ({"role": "assistant", "content": "x", "tool_calls": [{}]}, "without a function name"),
    ],
)
def test_conversations_that_the_template_refuses_name_their_row(tmp_path, student_folder, student_text, message, said):
    source = "{% for m in messages %}{% if m.role == 'narrator' %}{{ raise_exception('no role narrator') }}{% endif %}"
    template = dataclasses.replace(student_text.profile.template, source=source + "{{ m.content }}{% endfor %}")
    text = StudentText(dataclasses.replace(student_text.profile, template=template), {})
    file = write_jsonl(tmp_path / "p.jsonl", [{"messages": [USER]}, {"messages": [message, USER]}])
    with pytest.raises(InvalidDataError, match=said) as error:
        load_prompts(config_for(student_folder, [file]), text)
    assert error.value.details["row"] == 1


def test_tool_calls_that_do_not_go_into_json_name_their_row():
    call = {"function": {"name": "f", "arguments": {"day": datetime.date(2024, 1, 2)}}}
    with pytest.raises(InvalidDataError) as error:
        conversation_of({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}, USER]}, 7)
    assert error.value.details["row"] == 7


def test_jsonl_and_parquet_and_globs_in_the_order_of_the_files(tmp_path):
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "2"}])
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1"}])
    datasets.Dataset.from_list([{"prompt": "3"}, {"prompt": "4"}]).to_parquet(tmp_path / "c.parquet")
    found = read_rows([str(tmp_path / "*.jsonl"), str(tmp_path / "c.parquet")], 3)
    assert [row["prompt"] for row in found.rows] == ["1", "2", "3"]


@pytest.mark.parametrize("read", [load_prompts, load_warm_start])
def test_a_row_that_cannot_be_used_is_named_by_its_file(tmp_path, student_folder, student_text, read):
    good = write_jsonl(tmp_path / "good.jsonl", [{"prompt": "hello", "response": "hello"}] * 2)
    bad = write_jsonl(tmp_path / "bad.jsonl", [{"prompt": "hello", "response": "hello"}, {"response": "hello"}])
    files = [good, good, bad]
    config = config_for(student_folder, files, warm_start={"steps": 1, "responses": files})
    with pytest.raises(InvalidDataError, match=r"row 5 has .*\(row 1 of .*bad\.jsonl, counted from 0\)") as raised:
        read(config, student_text)
    assert raised.value.details["file"] == bad


def test_files_that_cannot_be_read_are_typed_errors(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "x"\n{')
    (tmp_path / "x.csv").write_text("prompt\nx\n")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    (tmp_path / "empty.parquet").write_bytes(b"")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "folder.jsonl").mkdir()
    for pattern in ("none.jsonl", "bad.jsonl", "x.csv", *BROKEN_FILES):
        with pytest.raises(InvalidDataError):
            read_rows([str(tmp_path / pattern)], None)


def test_overlong_prompts_are_dropped_and_counted_or_refused(tmp_path, student_folder, student_text):
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "hello"}, {"prompt": "hello " * 100}])
    config = config_for(student_folder, [file])
    prompts = load_prompts(config, student_text)
    assert (len(prompts.prompts), prompts.num_overlong) == (1, 1)
    with pytest.raises(InvalidDataError, match="row 1"):
        load_prompts(config.model_copy(update={"overlong": "error"}), student_text)
    with pytest.raises(InvalidDataError, match="no prompt"):
        load_prompts(config.model_copy(update={"max_prompt_tokens": 2}), student_text)


def test_the_order_wraps_around_epochs(tmp_path, student_folder, student_text):
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": str(i)} for i in range(3)])
    prompts = load_prompts(config_for(student_folder, [file]), student_text)
    assert [prompt.index for prompt in prompts.at(2, 5)] == [2, 0, 1, 2, 0]


def test_evaluation_prompts_are_optional(tmp_path, student_folder, student_text):
    file = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    assert load_evaluation_prompts(config_for(student_folder, [file]), student_text) is None
    config = config_for(student_folder, [file], eval={"every": 1, "prompts": [file], "limit": 1})
    held_out = load_evaluation_prompts(config, student_text)
    assert held_out is not None
    assert len(held_out.prompts) == 1


def test_columns_that_choose_the_teachers_travel_with_the_prompt(tmp_path, student_folder, student_text):
    rows = [{"prompt": "p", "subject": "algebra", "level": 3, "solution": "long"}, {"prompt": "q", "subject": None}]
    file = write_jsonl(tmp_path / "p.jsonl", rows)
    members = {name: {"urls": [f"{name}:1"]} for name in "ab"}
    routes = [{"column": "subject", "equals": "algebra", "to": ["a"]}]
    config = make_config(
        student_folder,
        prompts={"files": [file], "shuffle": False, "columns": ["level"]},
        teacher=None,
        teachers={"members": members, "routes": routes, "default": ["b"]},
    )
    prompts = load_prompts(config, student_text).prompts
    assert [prompt.columns for prompt in prompts] == [{"level": 3, "subject": "algebra"}, {}]


@pytest.mark.parametrize("value", [["algebra"], {"a": 1}, datetime.date(2024, 1, 2)])
def test_a_column_that_no_rule_can_read_names_its_row(value):
    with pytest.raises(InvalidDataError) as error:
        columns_of({"subject": value}, 7, ["subject"])
    assert error.value.details == {"row": 7, "column": "subject"}
