"""A teacher and a student of any size, made of numbers: for machines that have no tokenizer at hand.

Teacher tokens are three bytes long. The student has most of them, and single bytes for the rest, so that a response
holds aligned rows and rows inside teacher tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokbridge.modes import Routing, Spanning
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.pair_tables import PairTables, compile_pair
from tokbridge_teacher.segmentation import Segmentation
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.plan import ResponsePlan
from tokbridge_teacher.targets.planning import build_plan

TOKEN_BYTES = 3
LACKING = 16
"""The student lacks one in so many of the teacher's tokens."""


@dataclass(frozen=True)
class SyntheticPair:
    """Routing tables and the plan of one response of `tokens` random teacher tokens."""

    tables: PairTables
    plan: ResponsePlan


def make_pair(
    teacher_size: int, student_size: int, tokens: int, *, top_k: int = 48, mass: float = 0.995
) -> SyntheticPair:
    """Vocabularies of these sizes, the last id of each its stop token."""
    teacher = ByteVocabulary((*(i.to_bytes(TOKEN_BYTES, "big") for i in range(teacher_size - 1)), None))
    shared = [i for i in range(teacher_size - 1) if i % LACKING]
    own = student_size - 1 - 256
    strings = [i.to_bytes(TOKEN_BYTES, "big") for i in shared[:own]]
    strings += [i.to_bytes(TOKEN_BYTES, "big") for i in range(1 << 23, (1 << 23) + own - len(strings))]
    student = ByteVocabulary((*(bytes([byte]) for byte in range(256)), *strings, None))
    tables = compile_pair(teacher, student, Routing.GREEDY, student_encoder=None, cache_folder=None)
    ids = np.random.default_rng(0).integers(0, teacher_size - 1, tokens).astype(np.int32)
    content = teacher.content_of(ids)
    plan = build_plan(
        tables,
        Segmentation(ids, np.arange(tokens + 1, dtype=np.int64) * TOKEN_BYTES, np.zeros(tokens, bool)),
        _student_ids(student, content),
        content,
        teacher_stop_ids=[teacher_size - 1],
        stop_id=student_size - 1,
        turn_end_id=student_size - 1,
        given_bytes=0,
        options=ScoringOptions(Routing.GREEDY, Spanning.REALIZED, top_k, mass),
    )
    return SyntheticPair(tables, plan)


def _student_ids(student: ByteVocabulary, content: bytes) -> np.ndarray:
    """The longest tokens at every teacher boundary."""
    ids: list[int] = []
    for start in range(0, len(content), TOKEN_BYTES):
        piece = content[start : start + TOKEN_BYTES]
        whole = student.ids_by_bytes.get(piece)
        ids += [student.ids_by_bytes[bytes([byte])] for byte in piece] if whole is None else [whole]
    return np.array(ids, np.int32)
