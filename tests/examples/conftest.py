"""A tiny teacher behind a gRPC port, and a tiny student with another tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.served_in_thread import served_in_thread
from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge_teacher.building import build_service
from tokbridge_teacher.settings import ServeSettings


@pytest.fixture(scope="session")
def tiny_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="session")
def teacher_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("teacher"))
    built = build_service(ServeSettings(model=str(folder), max_model_len=600, chunk_rows=8))
    with served_in_thread(built.service) as address:
        yield address
    built.stop(grace_s=5)
