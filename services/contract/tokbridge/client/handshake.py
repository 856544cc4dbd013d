"""What a client and a replica tell each other before the first score: who it is, who the student is, the probe."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tokbridge.client.agreement import Agreement, ProbeAnswer
from tokbridge.client.call_metadata import CallMetadata
from tokbridge.client.expectation import TeacherExpectation, check_student_fits
from tokbridge.client.probe import PROBE_ID_PREFIX, probe_request
from tokbridge.client.score_stream import ScoreStream
from tokbridge.client.silence import Silence
from tokbridge.client.statistics import ClientStatistics
from tokbridge.description import TeacherDescription
from tokbridge.errors import (
    ChatTemplateError,
    ContentDroppedByTemplateError,
    ContextLengthExceededError,
    CorruptStreamError,
    DeadlineExceededError,
    InvalidRequestError,
    LimitExceededError,
    MalformedConversationError,
    TeacherUnavailableError,
    UnspellableByteError,
    UnsupportedTemplateError,
)
from tokbridge.registration import StudentRegistration
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc

HANDSHAKE_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 120.0
"""The probe waits its turn in the service's queue."""
REGISTRATION_TIMEOUT_S = 300.0
"""Includes the upload and compiling the pair's routing."""

_REFUSALS = (
    ChatTemplateError,
    ContentDroppedByTemplateError,
    ContextLengthExceededError,
    InvalidRequestError,
    LimitExceededError,
    MalformedConversationError,
    UnspellableByteError,
    UnsupportedTemplateError,
)
"""A teacher may refuse the probe and score what a user sends, with a system message or another template argument."""


@dataclass(frozen=True)
class Standing:
    """A finished handshake. Calls name the one they used when they report it broken."""

    teacher: TeacherDescription
    registration: teacher_pb2.RegisterStudentResponse


@dataclass(frozen=True)
class Demands:
    """What a client brings to every handshake, the same for all replicas."""

    student: StudentRegistration
    expectation: TeacherExpectation
    agreement: Agreement
    metadata: CallMetadata
    statistics: ClientStatistics


class Handshake:
    """Makes standings with one replica; holds no state of its own."""

    def __init__(self, name: str, stub: teacher_pb2_grpc.TeacherStub, demands: Demands, silence: Silence) -> None:
        self.name = name
        self._silence = silence
        self._stub = stub
        self._demands = demands

    async def make(self, request_id: str, previous: Standing | None, *, forgotten: bool, silent: bool) -> Standing:
        """Greet, then register and probe where that is new.

        Args:
            request_id: sent with every call, with a prefix in the probe.
            previous: the last standing with this replica.
            forgotten: the service no longer knows the student, whatever `previous` says.
            silent: it took calls and did not answer them, so it has to answer the probe again.

        Raises:
            grpc.aio.AioRpcError: a call failed.
            TokbridgeError: not the teacher that is meant, or not a replica of the others.
        """
        teacher = await self._greet(request_id)
        is_new = previous is None or previous.teacher.instance_id != teacher.instance_id
        registration = previous.registration if previous is not None else None
        if registration is None or is_new or forgotten:
            registration = await self._register(request_id)
        asks = silent or (is_new and self._demands.agreement.needs_probe)
        answer = await self._probe(teacher, request_id) if asks else None
        if is_new:
            self._demands.agreement.admit(self.name, teacher, answer)
        return Standing(teacher, registration)

    async def _greet(self, request_id: str) -> TeacherDescription:
        self._demands.statistics.handshakes += 1
        answer = await self._stub.GetTeacher(
            teacher_pb2.GetTeacherRequest(),
            timeout=HANDSHAKE_TIMEOUT_S,
            metadata=self._demands.metadata.of(request_id),
        )
        teacher = TeacherDescription.from_proto(answer)
        self._demands.expectation.check(teacher)
        self._demands.agreement.check(self.name, teacher)
        check_student_fits(self._demands.student, teacher)
        return teacher

    async def _register(self, request_id: str) -> teacher_pb2.RegisterStudentResponse:
        student = self._demands.student
        self._demands.statistics.registrations += 1
        messages = await asyncio.to_thread(list, student.to_messages())  # compresses tens of megabytes
        metadata = self._demands.metadata.of(request_id)
        answer = await self._stub.RegisterStudent(messages, timeout=REGISTRATION_TIMEOUT_S, metadata=metadata)
        if answer.student_id != student.student_id:
            raise CorruptStreamError("the teacher registered another student than the one sent", field="student_id")
        return answer

    async def _probe(self, teacher: TeacherDescription, request_id: str) -> ProbeAnswer:
        """Rows of the probe; a refusal that would recur is an answer too, since others refuse it alike."""
        student = self._demands.student
        request = probe_request(student, teacher, PROBE_ID_PREFIX + request_id)
        self._demands.statistics.probes += 1
        call = self._stub.Score(
            request.to_proto(student.student_id),
            timeout=PROBE_TIMEOUT_S,
            metadata=self._demands.metadata.of(request.request_id),
        )
        stream = ScoreStream(call, request.num_rows, student.vocabulary.size, self._silence)
        try:
            return TargetRows.concatenate([rows async for rows in stream.rows()])
        except DeadlineExceededError as error:
            raise TeacherUnavailableError("the teacher did not answer the probe in time") from error
        except _REFUSALS as error:
            return error.code.value
