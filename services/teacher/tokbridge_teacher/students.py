"""Students that registered: their vocabularies and, per routing mode, the tables that pair them with this teacher.

Content-addressed and bounded: the student not used for longest is forgotten, and registers again by itself. Tables are
compiled once per student and routing mode. Knows no protocol.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from tokbridge.errors import UnknownStudentError, UnsupportedModeError
from tokbridge.modes import Routing
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_agreement import check_same_vocabulary
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.routing.disk_cache import DEFAULT_CACHE_BYTES
from tokbridge_teacher.routing.pair_tables import PairTables, compile_pair
from tokbridge_teacher.segmentation import ContentTokenizer

PairCompiler = Callable[[StudentRegistration, Routing], PairTables]


def pair_compiler(
    teacher: ByteVocabulary, cache_folder: Path | None, max_cache_bytes: int = DEFAULT_CACHE_BYTES
) -> PairCompiler:
    """What pairs a student with `teacher`; compiled tables are kept in `cache_folder`, if given."""
    encoders = _EncoderOfTheLast()

    def compile_tables(registration: StudentRegistration, routing: Routing) -> PairTables:
        encoder = encoders.of(registration)
        if encoder is None and routing is Routing.BPE:
            raise UnsupportedModeError("Routing `bpe` needs the student's tokenizer; it was registered without.")
        return compile_pair(
            teacher,
            registration.vocabulary,
            routing,
            student_encoder=encoder,
            cache_folder=cache_folder,
            max_cache_bytes=max_cache_bytes,
        )

    return compile_tables


class _EncoderOfTheLast:
    """The encoder of the student that was paired last, since its modes are compiled one after the other: reading a
    large tokenizer takes a second in which, in this library, no other thread runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registration: StudentRegistration | None = None
        self._encoder: ContentTokenizer | None = None

    def of(self, registration: StudentRegistration) -> ContentTokenizer | None:
        """The encoder; None for a student without a tokenizer.

        Raises:
            InvalidVocabularyError: it is not the tokenizer of the vocabulary.
        """
        if registration.tokenizer_json is None:
            return None
        with self._lock:
            if registration is not self._registration:
                check_same_vocabulary(registration.tokenizer_json, registration.vocabulary)
                encoder = ContentTokenizer(registration.tokenizer_json, registration.vocabulary, for_good=False)
                self._registration, self._encoder = registration, encoder
            return self._encoder


class Student:
    """One registered student; safe from several threads."""

    def __init__(self, registration: StudentRegistration, compile_tables: PairCompiler, device: str) -> None:
        self.registration = registration
        self._compile_tables = compile_tables
        self._device = device
        self._lock = threading.Lock()
        self._tables: dict[Routing, PairTables] = {}
        self._device_tables: dict[Routing, DeviceTables] = {}

    @property
    def routings(self) -> tuple[Routing, ...]:
        """Modes this student can use."""
        return tuple(Routing) if self.registration.tokenizer_json is not None else (Routing.GREEDY,)

    def tables(self, routing: Routing) -> PairTables:
        """Tables of a routing mode, compiled at the first call.

        Raises:
            UnsupportedModeError: `bpe` for a student without a tokenizer.
        """
        with self._lock:
            if routing not in self._tables:
                self._tables[routing] = self._compile_tables(self.registration, routing)
            return self._tables[routing]

    def device_tables(self, routing: Routing) -> DeviceTables:
        """The same tables on the model's device."""
        tables = self.tables(routing)
        with self._lock:
            if routing not in self._device_tables:
                self._device_tables[routing] = tables.on_device(self._device)
            return self._device_tables[routing]


class StudentRegistry:
    """The students of one service, at most `max_students`; safe from several threads."""

    def __init__(self, compile_tables: PairCompiler, *, device: str, max_students: int) -> None:
        self._compile_tables = compile_tables
        self._device = device
        self._max_students = max_students
        self._lock = threading.Lock()
        self._students: OrderedDict[str, Student] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return len(self._students)

    def register(self, registration: StudentRegistration) -> tuple[Student, bool]:
        """The student, kept, and whether it was known already."""
        student, known = self.find(registration)
        return self.keep(student), known

    def find(self, registration: StudentRegistration) -> tuple[Student, bool]:
        """The student and True if it is known; else one that is not kept yet, and False."""
        student_id = registration.student_id
        with self._lock:
            if student_id in self._students:
                self._students.move_to_end(student_id)
                return self._students[student_id], True
        return Student(registration, self._compile_tables, self._device), False

    def keep(self, student: Student) -> Student:
        """Keep a student whose tables are there, in place of one not used for longest; the one of two equal that was
        kept first."""
        student_id = student.registration.student_id
        with self._lock:
            kept = self._students.setdefault(student_id, student)
            self._students.move_to_end(student_id)
            while len(self._students) > self._max_students:
                self._students.popitem(last=False)
            return kept

    def get(self, student_id: str) -> Student:
        """A registered student.

        Raises:
            UnknownStudentError: it never registered, or was forgotten.
        """
        with self._lock:
            if student_id not in self._students:
                raise UnknownStudentError(
                    f"No student {student_id[:64]!r} is registered here; register it (again).",
                    student_id=student_id[:64],
                )
            self._students.move_to_end(student_id)
            return self._students[student_id]
