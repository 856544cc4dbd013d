"""One tiny service with small limits, which hostile calls can reach."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.tiny_models import TINY_STUDENT, TINY_TEACHER, save_tiny_model
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.building import BuiltService, build_service
from tokbridge_teacher.settings import RequestLimits, ServeSettings


@pytest.fixture(scope="package")
def fuzzed_teacher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltService]:
    limits = RequestLimits(max_response_bytes=2000, max_conversation_bytes=3000, max_top_k=100, max_students=4)
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("fuzzed"))
    built = build_service(ServeSettings(model=str(folder), max_model_len=600, chunk_rows=8, limits=limits))
    yield built
    built.stop(grace_s=5)
    built.close()


@pytest.fixture(scope="package")
def student_profile(tmp_path_factory: pytest.TempPathFactory) -> TokenizerProfile:
    return load_tokenizer(save_tiny_model(TINY_STUDENT, tmp_path_factory.mktemp("student")))


@pytest.fixture(scope="package")
def student_registration(student_profile: TokenizerProfile) -> StudentRegistration:
    return StudentRegistration.from_profile(student_profile)
