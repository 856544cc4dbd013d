"""Command-line options made of settings: every field is one, with its type, default and docstring, so that none can be
forgotten. Fields of a nested model stand among them under their own names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tokbridge.errors import InvalidConfigError

Settings = TypeVar("Settings", bound=BaseModel)
Command = Callable[..., None]


def with_options_of(settings: type[BaseModel]) -> Callable[[Command], Command]:
    """A decorator for a command that takes the values of `settings` as `**values` beside parameters of its own.

    A field without a default becomes an argument.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        named = [parameter for parameter in own if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        # What inspect, and with it typer, shows in place of the command's own signature.
        vars(command)["__signature__"] = inspect.Signature([*named, *_parameters(settings)])
        return command

    return decorate


def settings_of(settings: type[Settings], values: Mapping[str, Any]) -> Settings:
    """The settings that a command was given.

    Raises:
        InvalidConfigError: a value is wrong; names the field.
    """
    try:
        return settings.model_validate(_nested(settings, values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "settings"
        raise InvalidConfigError(f"{field}: {first['msg']}", field=field) from error


def _parameters(settings: type[BaseModel], panel: str | None = None) -> list[inspect.Parameter]:
    parameters: list[inspect.Parameter] = []
    for name, field in settings.model_fields.items():
        nested = _nested_model(field)
        if nested is not None:
            parameters += _parameters(nested, panel=inspect.getdoc(nested))
        else:
            parameters.append(_parameter(name, field, panel))
    return parameters


def _parameter(name: str, field: FieldInfo, panel: str | None) -> inspect.Parameter:
    text = " ".join((field.description or "").split())
    # Whether it is one of the literals is for the settings to say.
    value_type: Any = str if get_origin(field.annotation) is Literal else field.annotation
    if field.is_required():
        annotation, default = Annotated[value_type, typer.Argument(help=text)], inspect.Parameter.empty
    else:
        annotation, default = Annotated[value_type, typer.Option(help=text, rich_help_panel=panel)], field.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _nested(settings: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        nested = _nested_model(field)
        result[name] = values[name] if nested is None else _nested(nested, values)
    return result


def _nested_model(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
