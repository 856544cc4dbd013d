"""Every setting of a service can be given on its command line, and what is given arrives."""

import inspect
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError
from typer.testing import CliRunner

from tokbridge.errors import InvalidConfigError
from tokbridge.modes import Routing, Spanning
from tokbridge_cli import teacher_serve
from tokbridge_cli.main import build_app
from tokbridge_teacher.settings import VLLM_OPTIONS, RequestLimits, ServeSettings
from tokbridge_teacher.targets.options import MAX_TOP_K, ScoringOptions

OWN_OPTIONS = {"log_level", "log_format"}


def leaves(settings: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Every field that is no model itself, and where it stands."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inner = leaves(kind)
            assert not inner.keys() & (found.keys() | settings.model_fields.keys()), "one name, two settings"
            found |= inner
        else:
            found[name] = settings
    return found


FIELDS = leaves(ServeSettings)


def another_value(name: str) -> object:
    """A value for a field that is allowed and not its default."""
    field = FIELDS[name].model_fields[name]
    kinds = get_args(field.annotation) or (field.annotation,)
    if field.annotation is bool:
        return not field.default
    if Path in kinds:
        return Path("/somewhere") / name
    if float in kinds:
        return field.default / 2
    if int in kinds:
        return 4321 if field.default is None else field.default + 1
    if get_origin(field.annotation) is Literal:
        return next(choice for choice in kinds if choice != field.default)
    return f"another-{name}"


@pytest.fixture
def served(monkeypatch) -> list[ServeSettings]:
    """What the command would serve."""
    settings: list[ServeSettings] = []
    monkeypatch.setattr(teacher_serve, "serve", settings.append)
    monkeypatch.setattr(teacher_serve, "configure_logging", lambda *_: None)
    monkeypatch.setattr(teacher_serve, "require", lambda *_, **__: None)
    return settings


def run(*arguments: str):
    command = ["teacher", "serve", *arguments]
    wide = {"COLUMNS": "240"}  # a narrow help cuts names
    return CliRunner(env=wide).invoke(build_app(command), command, catch_exceptions=False)


def options(values: dict[str, object]) -> list[str]:
    given: list[str] = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        given += [flag] if value is True else [flag, str(value)]
    return given


def test_there_is_an_option_for_every_setting_and_no_other():
    assert inspect.signature(teacher_serve.run).parameters.keys() == {*FIELDS, *OWN_OPTIONS}


def test_every_setting_says_what_it_is():
    assert [name for name, model in FIELDS.items() if not model.model_fields[name].description] == []


# Neither backend takes what is for the other one.
OF_VLLM = {"backend", *VLLM_OPTIONS}
NOT_OF_VLLM = {"device"}


@pytest.mark.parametrize("names", [FIELDS.keys() - OF_VLLM, FIELDS.keys() - NOT_OF_VLLM], ids=["huggingface", "vllm"])
def test_every_option_arrives_where_it_belongs(names, served):
    values = {name: another_value(name) for name in names - {"model"}}
    assert run("some-model", *options(values)).exit_code == 0
    (settings,) = served
    for name, value in values.items():
        holder = settings.limits if FIELDS[name] is RequestLimits else settings
        assert getattr(holder, name) == value, name
    assert settings.model == "some-model"


def test_without_options_the_defaults_hold(served):
    assert run("some-model").exit_code == 0
    assert served == [ServeSettings(model="some-model")]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (["--chunk-rows", "0"], "chunk_rows"),
        (["--max-top-k", "5"], "limits"),
        (["--tls-key", "x"], "settings"),
        (["--dtype", "float8"], "dtype"),
        (["--log-level", "loud"], "log_level"),
    ],
)
def test_a_value_that_is_wrong_names_its_setting(given, field, served):
    with pytest.raises(InvalidConfigError) as raised:
        run("some-model", *given)
    assert raised.value.details["field"] == field
    assert served == []


def test_the_help_shows_every_option():
    shown = run("--help")
    for name in FIELDS.keys() - {"model"}:
        assert f"--{name.replace('_', '-')} " in shown.output, name


def test_no_limit_on_cells_is_above_what_a_row_can_carry():
    """Else the service would announce what it refuses."""
    for name in ("max_top_k", "default_top_k"):
        with pytest.raises(ValidationError):
            RequestLimits(**{"max_top_k": MAX_TOP_K, name: MAX_TOP_K + 1})
    limits = RequestLimits(max_top_k=MAX_TOP_K, default_top_k=MAX_TOP_K)
    ScoringOptions(Routing.GREEDY, Spanning.REALIZED, limits.max_top_k, 1.0)
