"""A teacher service that speaks the protocol on a loopback socket, computes nothing, and fails as it is told.

Faults are taken from the front of a script, one for each `Score` call; an empty script means that all goes well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
import numpy as np

import tokbridge
from support.random_rows import random_rows
from tokbridge.client.probe import PROBE_ID_PREFIX
from tokbridge.description import Limits, TeacherDescription
from tokbridge.error_mapping import ERROR_TRAILER_KEY, detail_of
from tokbridge.errors import TokbridgeError, UnknownStudentError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary, Timings
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge.vocabulary import ByteVocabulary
from tokbridge.wire import checksum, encode_rows

VOCABULARY_SIZE = 1000
LIMITS = Limits(
    max_top_k=64,
    max_response_bytes=1000,
    max_conversation_bytes=10_000,
    max_vocabulary_size=2000,
    max_vocabulary_bytes=10_000,
    max_tokens_in_flight=1000,
)
TEACHER = TeacherDescription(
    model="fake",
    vocabulary_fingerprint="f" * 64,
    tokenizer_size=10,
    head_size=16,
    stop_ids=frozenset({9}),
    chat_template_hash="c" * 64,
    context_length=100,
    limits=LIMITS,
    routings=frozenset(Routing),
    spannings=frozenset(Spanning),
    version=tokbridge.__version__,
    dtype="float32",
    device="cpu",
    backend="fake",
    instance_id="first",
)


def make_student(name: str = "student", tokenizer_json: str | None = None) -> StudentRegistration:
    """A student of `VOCABULARY_SIZE` ids; the last one is its stop token."""
    tokens = [f"<{i}>".encode() for i in range(VOCABULARY_SIZE - 1)]
    vocabulary = ByteVocabulary((*tokens, None))
    stop_id = VOCABULARY_SIZE - 1
    return StudentRegistration(name, vocabulary, frozenset({stop_id}), stop_id, tokenizer_json)


def make_request(num_tokens: int = 12, **changes: object) -> ScoreRequest:
    """A request whose answer has `num_tokens` + 1 rows."""
    token_ids = np.arange(num_tokens, dtype=np.int32)
    request = ScoreRequest(
        messages=[{"role": "user", "content": "hi"}],
        response=b"".join(f"<{i}>".encode() for i in token_ids),
        token_ids=token_ids,
        stop_id=VOCABULARY_SIZE - 1,
    )
    return replace(request, **changes)


@dataclass(frozen=True)
class Fault:
    """What goes wrong in one `Score` call."""

    error: TokbridgeError | None = None
    """End with this typed error…"""
    status: grpc.StatusCode | None = None
    """…or with a bare status…"""
    after_chunks: int = 0
    """…after so many messages of rows."""
    metadata: tuple[tuple[str, str | bytes], ...] = ()
    hang: bool = False
    """Stop talking there instead, until cancelled."""
    corrupt: str = ""
    """`checksum`, `no_trailer`, `missing_rows`, `wrong_count` or `bad_cells`."""


@dataclass
class FakeTeacher(teacher_pb2_grpc.TeacherServicer):
    """Counts what it is asked."""

    description: TeacherDescription = TEACHER
    script: deque[Fault] = field(default_factory=deque)
    greeting_faults: deque[Fault] = field(default_factory=deque)
    chunk_rows: int = 5
    notes: tuple[str, ...] = ("a note",)
    students: dict[str, StudentRegistration] = field(default_factory=dict)
    greetings: int = 0
    registrations: int = 0
    scores: list[teacher_pb2.ScoreRequest] = field(default_factory=list)
    """Without the handshake's probes, which take no fault either."""
    probes: list[teacher_pb2.ScoreRequest] = field(default_factory=list)
    probe_error: TokbridgeError | None = None
    nudge: float = 0.0
    """How many nats the first cell of each row is less likely than it should be."""
    metadata: list[dict[str, str]] = field(default_factory=list)
    """Of every call, the handshake's included."""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def GetTeacher(self, request, context):
        self.metadata.append(dict(context.invocation_metadata()))
        self.greetings += 1
        if self.greeting_faults:
            await _end(self.greeting_faults.popleft(), context)
        return self.description.to_proto()

    async def RegisterStudent(self, request_iterator, context):
        self.metadata.append(dict(context.invocation_metadata()))
        self.registrations += 1
        student = await StudentRegistration.from_stream(request_iterator, self.description.limits)
        known = student.student_id in self.students
        self.students[student.student_id] = student
        return teacher_pb2.RegisterStudentResponse(student_id=student.student_id, already_known=known)

    async def Score(self, request, context):
        self.metadata.append(dict(context.invocation_metadata()))
        if request.request_id.startswith(PROBE_ID_PREFIX):
            self.probes.append(request)
            fault = Fault(error=self.probe_error)
        else:
            self.scores.append(request)
            fault = self.script.popleft() if self.script else Fault()
        if request.student_id not in self.students:
            fault = Fault(error=UnknownStudentError("who is that", student_id=request.student_id))
        try:
            async for response in self._responses(ScoreRequest.from_proto(request), fault, context):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _responses(self, request, fault, context) -> AsyncIterator[teacher_pb2.ScoreResponse]:
        rows = nudged(expected_rows(request), self.nudge)
        running = 0
        for number, start in enumerate(range(0, rows.num_rows, self.chunk_rows)):
            if number == fault.after_chunks:
                await _end(fault, context)
            message = encode_rows(rows.slice(start, start + self.chunk_rows))
            running = checksum(message, running)
            if fault.corrupt == "bad_cells":
                message.cell_ids = b""
            if not (fault.corrupt == "missing_rows" and number == 1):
                yield teacher_pb2.ScoreResponse(rows=message)
        if fault.corrupt != "no_trailer":
            summary = replace(SUMMARY, notes=self.notes)
            yield teacher_pb2.ScoreResponse(trailer=_trailer(summary, rows, running, fault))

    def forget(self, instance_id: str = "second") -> None:
        """As after a restart."""
        self.students.clear()
        self.description = replace(self.description, instance_id=instance_id)


def expected_rows(request: ScoreRequest) -> TargetRows:
    """The rows that the fake teacher gives for a request: random, but always the same."""
    return random_rows(np.random.default_rng(len(request.token_ids)), request.num_rows, vocabulary_size=VOCABULARY_SIZE)


def nudged(rows: TargetRows, nats: float) -> TargetRows:
    """The rows of another model: from the first cell of each row some mass went into the residual."""
    with_cells = np.flatnonzero(np.diff(rows.row_offsets))
    first_cells = rows.row_offsets[with_cells]
    log_probs, residual = rows.cell_log_probs.copy(), rows.residual_truncated.copy()
    log_probs[first_cells] -= abs(nats)
    residual[with_cells] += np.exp(rows.cell_log_probs[first_cells]) - np.exp(log_probs[first_cells])
    return replace(rows, cell_log_probs=log_probs, residual_truncated=residual)


SUMMARY = ScoreSummary(
    cases={"aligned": 3},
    seam="none",
    notes=("a note",),
    prompt_tokens=4,
    shared_prompt_tokens=1,
    content_tokens=5,
    content_log_prob=-6.5,
    stop_log_prob=-0.5,
    scored_bytes=7,
    unresolved_mass=1.25,
    lookahead_tail=0.5,
    timings=Timings(prepare_s=0.1, queue_s=0.0, compute_s=0.2, total_s=0.4),
)


def _trailer(summary: ScoreSummary, rows: TargetRows, running: int, fault: Fault) -> teacher_pb2.ScoreTrailer:
    count = rows.num_rows + (fault.corrupt == "wrong_count")
    return summary.to_proto(count, running ^ (fault.corrupt == "checksum"))


async def _end(fault: Fault, context: grpc.aio.ServicerContext) -> None:
    if fault.hang:
        await asyncio.sleep(3600)
    if fault.error is not None:
        detail = (ERROR_TRAILER_KEY, detail_of(fault.error, "some-id").SerializeToString())
        await context.abort(grpc.StatusCode.UNKNOWN, "see detail", (detail, *fault.metadata))
    if fault.status is not None:
        await context.abort(fault.status, "as scripted", fault.metadata)


@asynccontextmanager
async def serving(
    teacher: FakeTeacher, port: int = 0, *, host: str = "127.0.0.1", tls: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    """Serve on a loopback port; leaving cuts every connection at once."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    teacher_pb2_grpc.add_TeacherServicer_to_server(teacher, server)
    address = f"{host}:{port}"
    bound = server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(grace=None)
