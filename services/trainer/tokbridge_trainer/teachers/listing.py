"""The list of teachers of a run, with what is shown to each: from the configuration, or from a file of its own.

Both are read where the paths mean something: a configuration's by the driver, a file's where the feed runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokbridge.client.credentials import ClientCredentials
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import parse_mapping, validated
from tokbridge_trainer.config_teachers import TeachersConfig
from tokbridge_trainer.teacher_credentials import exposed_addresses, load_credentials
from tokbridge_trainer.teachers.assignment import check_columns


@dataclass(frozen=True)
class TeacherList:
    """Teachers by name."""

    config: TeachersConfig
    credentials: Mapping[str, ClientCredentials]


def configured_teachers(config: TrainConfig) -> TeacherList:
    """The list that a run starts with.

    Raises:
        InvalidConfigError: the file, a key or a certificate cannot be read, or the list is wrong.
    """
    if config.teachers_file is not None:
        return parse_list(read_list(config.teachers_file), config.teachers_file, config.prompt_columns)
    if config.teachers is not None:
        return _with_credentials(config.teachers, Path())
    assert config.teacher is not None, "the configuration has checked that there is one of the three"
    return _with_credentials(TeachersConfig.of_one(config.teacher), Path())


def read_list(path: Path) -> bytes:
    """Content of a `teachers_file`; raises `InvalidConfigError` when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}", field="teachers_file") from None


def parse_list(content: bytes, path: Path, carried: frozenset[str]) -> TeacherList:
    """Check the content of a `teachers_file`. Keys and certificates are looked for beside it.

    Args:
        carried: columns that travel with the prompts.

    Raises:
        InvalidConfigError: it is not a section `teachers`, or reads other columns, or a key cannot be read.
    """
    teachers = validated(TeachersConfig, parse_mapping(content, path))
    check_columns(teachers, carried)
    return _with_credentials(teachers, path.parent)


def exposure_warnings(teachers: TeacherList, name: str) -> list[str]:
    """A line for each address of a teacher to which its API key would go in the clear.

    Raises:
        InvalidConfigError: an address is wrong, or certificates do not fit its scheme.
    """
    addresses = exposed_addresses(teachers.config.members[name], teachers.credentials[name])
    advice = "write grpcs:// and give it a certificate"
    return [f"WARNING: the API key goes to {address} without encryption; {advice}" for address in addresses]


def _with_credentials(teachers: TeachersConfig, folder: Path) -> TeacherList:
    return TeacherList(teachers, {name: load_credentials(member, folder) for name, member in teachers.members.items()})
