"""From a request to a plan: spelling, rendering, segmentation, alignment. CPU work, no model, no protocol."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import ContextLengthExceededError, StopTokenNotInStopSetError
from tokbridge.requests import ScoreRequest
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_teacher.prompt.rendering import RenderedPrompt, render_prompt
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.routing.pair_tables import PairTables
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.settings import RequestLimits
from tokbridge_teacher.students import Student
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.plan import ResponsePlan
from tokbridge_teacher.targets.planning import build_plan


@dataclass(frozen=True)
class PreparedResponse:
    """All that the model and the assembly need of one request."""

    prompt: RenderedPrompt
    plan: ResponsePlan
    tables: PairTables
    device_tables: DeviceTables
    scored_bytes: int
    notes: tuple[str, ...]
    """What was noticed of the teacher's template and of this conversation."""

    @property
    def prompt_ids(self) -> NDArray[np.int32]:
        """[L], teacher tokens of the rendered prompt."""
        return self.prompt.token_ids

    @property
    def num_tokens(self) -> int:
        """Teacher tokens of prompt and content."""
        return len(self.prompt_ids) + len(self.plan.teacher_ids)


class RequestPreparer:
    """Prepares requests for one teacher."""

    def __init__(self, profile: TokenizerProfile, limits: RequestLimits, context_length: int) -> None:
        self._profile = profile
        self._limits = limits
        self._context_length = context_length
        self._content_tokenizer = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)

    def prepare(self, request: ScoreRequest, student: Student) -> PreparedResponse:
        """Check a request and plan its response.

        Raises:
            TokbridgeError: any of the errors a caller can cause; nothing of the request was computed then.
        """
        options = scoring_options(request, self._limits)
        check_response(request, student)
        tables = student.tables(request.routing)
        prompt = render_prompt(
            self._profile,
            self._content_tokenizer,
            [dict(message) for message in request.messages],
            request.tools,
            request.template_arguments,
            request.student_tail,
            request.response,
        )
        segmentation = self._content_tokenizer.segment(request.response[prompt.given_bytes :])
        self._check_context(len(prompt.token_ids) + len(segmentation.ids))
        plan = build_plan(
            tables,
            segmentation,
            request.token_ids,
            request.response,
            teacher_stop_ids=self._profile.stop_ids,
            stop_id=request.stop_id,
            turn_end_id=student.registration.turn_end_id,
            given_bytes=prompt.given_bytes,
            options=options,
        )
        return PreparedResponse(
            prompt=prompt,
            plan=plan,
            tables=tables,
            device_tables=student.device_tables(request.routing),
            scored_bytes=len(request.response) - prompt.given_bytes,
            notes=(*self._profile.notes, *prompt.notes),
        )

    def _check_context(self, tokens: int) -> None:
        if tokens > self._context_length:
            raise ContextLengthExceededError(
                f"Prompt and response are {tokens} teacher tokens; the teacher takes {self._context_length}.",
                tokens=tokens,
                limit=self._context_length,
            )


def scoring_options(request: ScoreRequest, limits: RequestLimits) -> ScoringOptions:
    """Modes and truncation of a request, the service's defaults where it leaves them open."""
    return ScoringOptions(
        routing=request.routing,
        spanning=request.spanning,
        top_k=request.top_k or limits.default_top_k,
        mass=request.mass or limits.default_mass,
    )


def check_response(request: ScoreRequest, student: Student) -> None:
    """Check emitted ids and stop token against the student's vocabulary.

    Raises:
        TokensDoNotSpellResponseError, TokenIdOutOfRangeError: the ids are not what was written.
        StopTokenNotInStopSetError: the stop token ends no turn of this student.
    """
    registration = student.registration
    registration.vocabulary.check_spells(request.token_ids, request.response)
    if request.stop_id is not None and request.stop_id not in registration.stop_ids:
        raise StopTokenNotInStopSetError(
            f"Token {request.stop_id} is not in the student's stop set {sorted(registration.stop_ids)}.",
            token_id=request.stop_id,
        )
