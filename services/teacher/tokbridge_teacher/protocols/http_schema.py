"""JSON bodies of the HTTP protocol, for people and curl; machines send and take protobuf instead."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from tokbridge.description import Limits
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.registration_reader import check_name, check_within
from tokbridge.requests import ScoreRequest
from tokbridge.results import ScoreSummary
from tokbridge.targets import RowCase, RowFlag, TargetRows
from tokbridge.tokenizer_files import TokenizerFiles
from tokbridge.tokenizer_profile import profile_from_files
from tokbridge.v1 import teacher_pb2
from tokbridge.vocabulary_wire import check_token_lengths

LogProb = float | None
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class MessageBody(BaseModel):
    """One message in the OpenAI form."""

    model_config = ConfigDict(extra="forbid")

    role: str
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None


class ScoreBody(BaseModel):
    """A request to score one assistant turn."""

    model_config = ConfigDict(extra="forbid")

    student_id: str = Field(description="As `POST /v1/students` answered.")
    messages: list[MessageBody] = Field(description="The turns before the response.")
    response: str = Field(description="Text of the response, without its stop token.")
    token_ids: list[Int32] = Field(description="Emitted content ids; their bytes are `response`.")
    stop_id: Int32 | None = Field(default=None, ge=0, description="The stop token; null: the response was cut.")
    tools: list[dict[str, Any]] = []
    template_arguments: dict[str, Any] = {}
    student_tail: str = Field(default="", description="The student's generation prompt from its thinking opening on.")
    routing: Literal["greedy", "bpe"] = "greedy"
    spanning: Literal["realized", "lookahead"] = "realized"
    top_k: int = Field(default=0, ge=0, le=65535, description="Cells a row at most; 0: the service's default.")
    mass: float = Field(default=0.0, description="Mass the cells must cover; 0: the service's default; 1: no limit.")

    def to_proto(self, request_id: str) -> teacher_pb2.ScoreRequest:
        """The message that a client of the contract would send; errors as `ScoreRequest.to_proto`."""
        request = ScoreRequest(
            messages=[message.model_dump(exclude_none=True) for message in self.messages],
            response=self.response.encode(),
            token_ids=np.array(self.token_ids, np.int32),
            stop_id=self.stop_id,
            tools=self.tools,
            template_arguments=self.template_arguments,
            student_tail=self.student_tail,
            routing=Routing(self.routing),
            spanning=Spanning(self.spanning),
            top_k=self.top_k,
            mass=self.mass,
            request_id=request_id,
        )
        return request.to_proto(self.student_id)


class StudentBody(BaseModel):
    """A student's tokenizer files, as text."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(description="A label for people: printable, at most 255 characters.")
    tokenizer_json: str = Field(description="Text of the student's `tokenizer.json`.")
    stop_ids: list[int] = Field(min_length=1, description="Ids that end the student's turn, the usual one first.")
    head_size: int | None = Field(default=None, ge=1, description="Rows of the student's LM head; null: its ids.")

    def to_registration(self, limits: Limits) -> StudentRegistration:
        """The registration that a client with these files would send; takes CPU time.

        Raises:
            InvalidRequestError: the name is none that a student may have.
            InvalidVocabularyError: the text is no tokenizer, or a stop id is not a control token of it.
            LimitExceededError: it is larger than the service takes.
        """
        check_name(self.name)
        check_within("tokenizer_json_bytes", len(self.tokenizer_json), limits.max_vocabulary_bytes)
        files = TokenizerFiles(self.name, self.tokenizer_json, generation_config={"eos_token_id": self.stop_ids})
        profile = profile_from_files(files, self.head_size, max_vocabulary_size=limits.max_vocabulary_size)
        vocabulary = profile.vocabulary
        check_token_lengths(vocabulary.lengths)
        num_bytes = int(vocabulary.content_lengths.sum()) + len(self.tokenizer_json.encode())
        check_within("max_vocabulary_bytes", num_bytes, limits.max_vocabulary_bytes)
        registration = StudentRegistration(
            name=self.name,
            vocabulary=vocabulary,
            stop_ids=frozenset(self.stop_ids),
            turn_end_id=self.stop_ids[0],
            tokenizer_json=self.tokenizer_json,
        )
        registration.check_stops()
        return registration


class CellBody(BaseModel):
    """One cell of a row."""

    id: int
    log_prob: LogProb = Field(description="Natural logarithm; null: a mass of 0 (−∞, which JSON cannot say).")


class RowBody(BaseModel):
    """The target of one student position."""

    row: int
    case: str
    flags: list[str]
    has_target: bool
    cells: list[CellBody]
    residual_unmapped: float
    residual_control: float
    residual_truncated: float
    emitted_log_prob: LogProb = Field(description="Of the emitted token; null: a mass of 0, or no target at all.")


class SummaryBody(BaseModel):
    """What is known of the whole response; a logarithm of 0 is null."""

    cases: dict[str, int]
    seam: str
    notes: list[str]
    prompt_tokens: int
    shared_prompt_tokens: int
    content_tokens: int
    content_log_prob: LogProb
    stop_log_prob: LogProb
    scored_bytes: int
    unresolved_mass: float
    lookahead_tail: float
    timings: dict[str, float]


class ScoreAnswer(BaseModel):
    """All rows of a response and its summary."""

    request_id: str
    rows: list[RowBody]
    summary: SummaryBody


class RegisteredAnswer(BaseModel):
    """A registered student."""

    student_id: str
    already_known: bool
    statistics: list[dict[str, Any]] = Field(description="Of the pair, one for each routing mode it can use.")


class ErrorBody(BaseModel):
    """A typed error."""

    code: str
    message: str
    details: dict[str, str]
    retryable: bool
    request_id: str


def summary_to_json(summary: ScoreSummary) -> SummaryBody:
    """The trailer in words."""
    timings = summary.timings
    return SummaryBody(
        cases=dict(summary.cases),
        seam=summary.seam,
        notes=list(summary.notes),
        prompt_tokens=summary.prompt_tokens,
        shared_prompt_tokens=summary.shared_prompt_tokens,
        content_tokens=summary.content_tokens,
        content_log_prob=_finite(summary.content_log_prob),
        stop_log_prob=_finite(summary.stop_log_prob),
        scored_bytes=summary.scored_bytes,
        unresolved_mass=summary.unresolved_mass,
        lookahead_tail=summary.lookahead_tail,
        timings={name: getattr(timings, name) for name in ("prepare_s", "queue_s", "compute_s", "total_s")},
    )


def row_to_json(rows: TargetRows, index: int) -> RowBody:
    """A row in words; −∞ becomes null, by intent."""
    case = RowCase(int(rows.cases[index]))
    cells = slice(int(rows.row_offsets[index]), int(rows.row_offsets[index + 1]))
    pairs = zip(rows.cell_ids[cells].tolist(), rows.cell_log_probs[cells].tolist(), strict=True)
    return RowBody(
        row=rows.first_row + index,
        case=case.name.lower(),
        flags=[flag.name.lower() for flag in RowFlag if flag & int(rows.flags[index]) and flag.name],
        has_target=case.has_target,
        cells=[CellBody(id=token_id, log_prob=_finite(log_prob)) for token_id, log_prob in pairs],
        residual_unmapped=float(rows.residual_unmapped[index]),
        residual_control=float(rows.residual_control[index]),
        residual_truncated=float(rows.residual_truncated[index]),
        emitted_log_prob=_finite(float(rows.emitted_log_prob[index])),
    )


def _finite(log_prob: float) -> LogProb:
    return log_prob if math.isfinite(log_prob) else None
