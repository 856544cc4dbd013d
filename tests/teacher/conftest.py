"""Tiny teachers and students, loaded once a session; one service that tests put behind real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.building import BuiltService, build_service
from tokbridge_teacher.settings import RequestLimits, ServeSettings


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="session")
def student_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="session")
def teacher_profile(teacher_folder: Path) -> TokenizerProfile:
    return load_tokenizer(teacher_folder)


@pytest.fixture(scope="session")
def student_profile(student_folder: Path) -> TokenizerProfile:
    return load_tokenizer(student_folder)


@pytest.fixture(scope="session")
def student_registration(student_profile: TokenizerProfile) -> StudentRegistration:
    return StudentRegistration.from_profile(student_profile)


@pytest.fixture(scope="session")
def built_teacher(teacher_folder: Path) -> Iterator[BuiltService]:
    """A ready service with small limits, so that tests can reach them."""
    settings = ServeSettings(
        model=str(teacher_folder),
        max_model_len=600,
        chunk_rows=8,
        limits=RequestLimits(max_response_bytes=2000, max_conversation_bytes=1500, max_top_k=100),
    )
    built = build_service(settings)
    yield built
    built.stop(grace_s=5)
