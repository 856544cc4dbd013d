"""Reads a configuration file, applies `key=value` overrides and writes the resolved document.

The module knows the syntax only: what the keys mean stands in `config.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_sections import Section

AnySection = TypeVar("AnySection", bound=Section)

_YAML_FAULTS = (yaml.YAMLError, ValueError, RecursionError)
"""PyYAML lets the ValueError of a date that does not exist through; bytes that are not UTF-8 raise one, too. Brackets
without end are read by recursion."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping: PyYAML would take the last one and say nothing."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value!r} stands twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node


def load_config(path: Path, overrides: Iterable[str] = ()) -> TrainConfig:
    """Read a YAML file and apply overrides in order.

    Raises:
        InvalidConfigError: the file is missing, is not a mapping, or a value is wrong; the message names the key.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}", field="(file)") from None
    document = parse_mapping(content, path)
    for override in overrides:
        _apply_override(document, override)
    return parse_config(document)


def parse_config(document: dict[str, Any]) -> TrainConfig:
    """Check a document; the first wrong key is named in the error."""
    return validated(TrainConfig, document)


def validated(section: type[AnySection], document: dict[str, Any]) -> AnySection:
    """A document as a section; raises `InvalidConfigError`, which names the first wrong key."""
    try:
        return section.model_validate(document)
    except ValidationError as error:
        # A default that depends on a wrong value has not been made; that says nothing new.
        errors = [e for e in error.errors() if e["type"] != "default_factory_not_called"]
        problems = [f"{'.'.join(map(str, e['loc'])) or '(whole document)'}: {e['msg']}" for e in errors]
        field = problems[0].split(":")[0]
        raise InvalidConfigError("wrong configuration: " + "; ".join(problems), field=field) from None


def dump_config(config: TrainConfig) -> str:
    """The resolved document as YAML; loading it again gives an equal configuration."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def parse_mapping(content: bytes, path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds; raises `InvalidConfigError`, which names the file."""
    try:
        document = yaml.load(content.decode(), _Loader)
    except _YAML_FAULTS as error:
        raise InvalidConfigError(f"{path} is not YAML: {' '.join(str(error).split())}", field="(file)") from None
    if not isinstance(document, dict):
        raise InvalidConfigError(f"{path} must hold a mapping", field="(file)")
    return document


def _apply_override(document: dict[str, Any], override: str) -> None:
    """Set `a.b.c=VALUE` in place; the value is YAML, so `null`, numbers and lists work (pydantic reads `1e-4`)."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise InvalidConfigError(f"an override reads key=value, not {override!r}", field=key)
    *parents, leaf = key.split(".")
    section = document
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            raise InvalidConfigError(f"{parent} is not a section in {override!r}", field=key)
    try:
        section[leaf] = yaml.load(text, _Loader)
    except _YAML_FAULTS:
        raise InvalidConfigError(f"the value in {override!r} is not YAML", field=key) from None
