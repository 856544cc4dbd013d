"""A tiny student, made once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiny_models import TINY_STUDENT, save_tiny_model
from support.training import make_config
from tokbridge_trainer.student_text import StudentText, load_student_text


@pytest.fixture(scope="session")
def student_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="session")
def student_text(student_folder: Path) -> StudentText:
    return load_student_text(make_config(student_folder))
