"""A tiny teacher behind a real socket, for the commands that call one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from support.served_in_thread import served_in_thread
from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge_cli.main import build_app
from tokbridge_teacher.building import BuiltService, build_service
from tokbridge_teacher.settings import ServeSettings


@pytest.fixture(scope="package")
def cli_student_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("cli-student"))


@pytest.fixture(scope="package")
def cli_teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltService]:
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("cli-teacher"))
    built = build_service(ServeSettings(model=str(folder), max_model_len=600))
    yield built
    built.stop(grace_s=5)
    built.close()


@pytest.fixture(scope="package")
def teacher_address(cli_teacher: BuiltService) -> Iterator[str]:
    with served_in_thread(cli_teacher.service) as address:
        yield address


@pytest.fixture
def call():
    """Runs a command line in this process; typed errors come out of it as in `main`."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(build_app(arguments), arguments)

    return call
