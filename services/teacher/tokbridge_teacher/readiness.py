"""The last check before a service may serve: the whole target path on a response of the teacher's own tokens.

The teacher is its own student here, so every row must hold what the model itself says, sum to one, and come out the
same when scored twice.
"""

from __future__ import annotations

import numpy as np

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
_REPEAT_TOLERANCE = 1e-5
_MASS_TOLERANCE = 1e-5


def check_whole_path(backend: Backend, profile: TokenizerProfile, tables: PairTables) -> float:
    """Score one response twice.

    Args:
        backend: loaded, with its own self-test passed.
        profile: the teacher's tokenizer.
        tables: the teacher paired with itself, routing `greedy`.

    Returns:
        Largest difference between the two, in nats or probability.

    Raises:
        SelfTestFailedError: they differ, or a row does not sum to one.
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
    device_tables = tables.on_device(backend.describe().device)
    prompt_ids = content_tokenizer.segment(_PROMPT).ids
    first, second = (_score(backend, prompt_ids, plan, tables, device_tables) for _ in range(2))
    mass_error = max(float(np.abs(rows.row_mass() - 1).max()) for rows in first)
    if not mass_error <= _MASS_TOLERANCE:
        raise SelfTestFailedError(f"A row of the self-test is off one by {mass_error:.3g}.", error=mass_error)
    difference = max(_difference(*pair) for pair in zip(first, second, strict=True))
    if not difference <= _REPEAT_TOLERANCE:
        raise SelfTestFailedError(f"Scoring one response twice differs by {difference:.3g}.", error=difference)
    return difference


def _score(
    backend: Backend, prompt_ids: np.ndarray, plan: ResponsePlan, tables: PairTables, device_tables: DeviceTables
) -> list[TargetRows]:
    chunks: list[ChunkResult] = []
    errors: list[TokbridgeError] = []
    backend.score(
        [
            ScoreJob(
                prompt_ids=prompt_ids,
                plan=plan,
                tables=device_tables,
                cancelled=lambda: False,
                emit=chunks.append,
                finish=lambda _: None,
                fail=errors.append,
            )
        ]
    )
    if errors:
        raise errors[0]
    assembler = RowAssembler(plan, tables)
    rows = [assembler.add(chunk) for chunk in chunks]
    assembler.finish()
    return [part for part in rows if part.num_rows]


def _difference(left: TargetRows, right: TargetRows) -> float:
    """Largest difference of an emitted log-prob or a residual."""
    emitted = np.abs(np.nan_to_num(left.emitted_log_prob) - np.nan_to_num(right.emitted_log_prob))
    return float(max(emitted.max(), np.abs(left.residual - right.residual).max()))
