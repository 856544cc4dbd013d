"""The last check before a service may serve: the whole target path on a response of the teacher's own tokens. A model
that failed is asked for the same response again.

The teacher is its own student here, so every row must hold what the model itself says, sum to one, and come out the
same when scored twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import SelfTestFailedError, TokbridgeError
from tokbridge.modes import Routing, Spanning
from tokbridge.targets import TargetRows
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_teacher.backends.base import Backend, ScoreJob
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.routing.pair_tables import PairTables
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import ChunkResult
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.plan import ResponsePlan
from tokbridge_teacher.targets.planning import build_plan

_PROMPT = b"Which number is the answer?"
_RESPONSE = "The answer is 42: six times seven.\n\tNaïve? 東京 🙂".encode()
_MASS_TOLERANCE = 1e-5


@dataclass(frozen=True)
class SelfTestResponse:
    """The response that the check scores, planned."""

    prompt_ids: NDArray[np.int32]
    plan: ResponsePlan
    tables: PairTables
    device_tables: DeviceTables

    @classmethod
    def planned(cls, profile: TokenizerProfile, tables: PairTables, device: str) -> SelfTestResponse:
        """Plan it.

        Args:
            profile: the teacher's tokenizer.
            tables: the teacher paired with itself, routing `greedy`.
            device: where the model is.
        """
        content_tokenizer = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)
        segmentation = content_tokenizer.segment(_RESPONSE)
        plan = build_plan(
            tables,
            segmentation,
            segmentation.ids,
            _RESPONSE,
            teacher_stop_ids=profile.stop_ids,
            stop_id=profile.turn_end_id,
            turn_end_id=profile.turn_end_id,
            given_bytes=0,
            options=ScoringOptions(routing=Routing.GREEDY, spanning=Spanning.REALIZED, top_k=32, mass=1.0),
        )
        return cls(content_tokenizer.segment(_PROMPT).ids, plan, tables, tables.on_device(device))

    def job(
        self,
        *,
        emit: Callable[[ChunkResult], None],
        finish: Callable[[int], None],
        fail: Callable[[TokbridgeError], None],
    ) -> ScoreJob:
        """The job of scoring it once."""
        return ScoreJob(
            prompt_ids=self.prompt_ids,
            plan=self.plan,
            tables=self.device_tables,
            cancelled=lambda: False,
            emit=emit,
            finish=finish,
            fail=fail,
        )


def check_whole_path(backend: Backend, response: SelfTestResponse) -> float:
    """Score the response twice on a loaded backend whose own self-test has passed.

    Returns:
        Largest difference between the two, in nats or probability.

    Raises:
        SelfTestFailedError: they differ, or a row does not sum to one.
    """
    first, second = (_score(backend, response) for _ in range(2))
    mass_error = max(float(np.abs(rows.row_mass() - 1).max()) for rows in first)
    if not mass_error <= _MASS_TOLERANCE:
        raise SelfTestFailedError(f"A row of the self-test is off one by {mass_error:.3g}.", error=mass_error)
    difference = max(_difference(*pair) for pair in zip(first, second, strict=True))
    if not difference <= backend.describe().repeat_tolerance:
        raise SelfTestFailedError(f"Scoring one response twice differs by {difference:.3g}.", error=difference)
    return difference


def _score(backend: Backend, response: SelfTestResponse) -> list[TargetRows]:
    chunks: list[ChunkResult] = []
    errors: list[TokbridgeError] = []
    backend.score([response.job(emit=chunks.append, finish=lambda _: None, fail=errors.append)])
    if errors:
        raise errors[0]
    assembler = RowAssembler(response.plan, response.tables)
    rows = [assembler.add(chunk) for chunk in chunks]
    assembler.finish()
    return [part for part in rows if part.num_rows]


def _difference(left: TargetRows, right: TargetRows) -> float:
    """Largest difference of an emitted log-prob or a residual."""
    emitted = np.abs(np.nan_to_num(left.emitted_log_prob) - np.nan_to_num(right.emitted_log_prob))
    return float(max(emitted.max(), np.abs(left.residual - right.residual).max()))
