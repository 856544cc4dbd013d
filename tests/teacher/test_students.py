from dataclasses import replace

import pytest

from tokbridge.errors import UnknownStudentError, UnsupportedModeError
from tokbridge.modes import Routing
from tokbridge_teacher import students
from tokbridge_teacher.students import StudentRegistry, pair_compiler


@pytest.fixture
def registry(teacher_profile):
    return StudentRegistry(pair_compiler(teacher_profile.vocabulary, None), device="cpu", max_students=2)


def test_tables_are_compiled_once(registry, student_registration):
    student, known = registry.register(student_registration)
    assert not known
    assert student.tables(Routing.GREEDY) is student.tables(Routing.GREEDY)
    assert student.device_tables(Routing.BPE) is student.device_tables(Routing.BPE)
    again, known = registry.register(student_registration)
    assert known
    assert again is student


def test_the_student_not_used_for_longest_is_forgotten(registry, student_registration):
    ids = []
    for name in ("a", "b", "c"):
        renamed = replace(student_registration, name=name)
        ids.append(renamed.student_id)
        registry.register(renamed)
        if name == "b":
            registry.get(ids[0])
    assert registry.get(ids[0]).registration.name == "a"
    with pytest.raises(UnknownStudentError) as unknown:
        registry.get(ids[1])
    assert unknown.value.details["student_id"] == ids[1]


def test_bpe_needs_the_students_tokenizer(registry, student_registration):
    student, _ = registry.register(replace(student_registration, tokenizer_json=None))
    assert student.routings == (Routing.GREEDY,)
    with pytest.raises(UnsupportedModeError):
        student.tables(Routing.BPE)


def test_a_tokenizer_is_read_once_for_all_modes(registry, student_registration, monkeypatch):
    read: list[str] = []
    tokenizer = students.ContentTokenizer

    def counting(text, *arguments, **options):
        read.append(text)
        return tokenizer(text, *arguments, **options)

    monkeypatch.setattr(students, "ContentTokenizer", counting)
    other = replace(student_registration, name="other")
    for registration in (student_registration, other):
        student, _ = registry.register(registration)
        assert {student.tables(routing).routing for routing in Routing} == set(Routing)
    assert len(read) == 2
