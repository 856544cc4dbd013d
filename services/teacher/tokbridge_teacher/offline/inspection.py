"""What a user asks of a pair before a run: routing, stop sets, thinking seam, row cases on a text.

Tokenizers only, no model. The printing is the command's (`tokbridge_cli/inspect.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tokbridge.errors import UnsupportedTemplateError
from tokbridge.modes import Routing
from tokbridge.targets import RowCase
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.offline.comparison import SegmentationComparison, compare_boundaries
from tokbridge_teacher.prompt.rendering import render_prompt
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.routing.statistics import RoutingStatistics, with_encoder_counts
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.targets.alignment import align

_PROBE = ({"role": "user", "content": "What is six times seven?"},)
_RESPONSES = {"plain": b"Forty-two.", "thinking": b"<think>\nSix sevens.\n</think>\n\nForty-two."}


@dataclass(frozen=True)
class SideReport:
    """One tokenizer."""

    name: str
    vocabulary_size: int
    content_tokens: int
    stop_tokens: dict[int, str]
    thinking_opening: str
    """g of spec §3.2 in the tokenizer's own generation prompt."""
    unspellable_bytes: tuple[int, ...]
    """Bytes that no single-byte token holds."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PairReport:
    """Both tokenizers, and what they make of one text."""

    teacher: SideReport
    student: SideReport
    shared_tokens: int
    """Distinct byte strings that are a content token of both."""
    routing: tuple[RoutingStatistics, ...]
    seams: dict[str, str]
    """By kind of response: how the seam is settled."""
    comparison: SegmentationComparison
    cases: dict[str, float]
    """Share of student rows of each case, spanning mode `realized`."""
    whitespace_share: float
    """Share of rows that the whitespace mask marks."""


def inspect_pair(
    teacher: TokenizerProfile, student: TokenizerProfile, content: bytes, cache_folder: Path | None
) -> PairReport:
    """Compare a teacher's and a student's tokenizers on `content`, each segmenting it in its own way."""
    teacher_encoder = ContentTokenizer(teacher.files.tokenizer_json, teacher.vocabulary)
    student_encoder = ContentTokenizer(student.files.tokenizer_json, student.vocabulary)
    by_teacher, by_student = teacher_encoder.segment(content), student_encoder.segment(content)
    alignment = align(student.vocabulary, by_student.ids, by_teacher, given_bytes=0, none_excluded=False)
    rows = max(len(by_student.ids), 1)
    return PairReport(
        teacher=_describe(teacher),
        student=_describe(student),
        shared_tokens=len(teacher.vocabulary.ids_by_bytes.keys() & student.vocabulary.ids_by_bytes.keys()),
        routing=_routing(teacher.vocabulary, student.vocabulary, student_encoder, cache_folder),
        seams=_seams(teacher, teacher_encoder, student),
        comparison=compare_boundaries(by_teacher.boundaries, by_student.boundaries),
        cases={RowCase(case).name.lower(): n / rows for case, n in Counter(alignment.cases.tolist()).items()},
        whitespace_share=float(np.mean(student.vocabulary.is_whitespace[by_student.ids]))
        if len(by_student.ids)
        else 0.0,
    )


def _describe(profile: TokenizerProfile) -> SideReport:
    text_by_id = {token_id: text for text, token_id in profile.control_ids.items()}
    vocabulary = profile.vocabulary
    return SideReport(
        name=profile.name,
        vocabulary_size=vocabulary.size,
        content_tokens=int((vocabulary.lengths >= 0).sum()),
        stop_tokens={token_id: text_by_id.get(token_id, "") for token_id in sorted(profile.stop_ids)},
        thinking_opening=_opening(profile),
        unspellable_bytes=tuple(byte for byte in range(256) if bytes([byte]) not in vocabulary.ids_by_bytes),
        notes=profile.notes,
    )


def _opening(profile: TokenizerProfile) -> str:
    try:
        return profile.template.generation_prompt_tail(_PROBE) if profile.template else ""
    except UnsupportedTemplateError:
        return ""


def _routing(
    teacher: ByteVocabulary, student: ByteVocabulary, encoder: ContentTokenizer, cache_folder: Path | None
) -> tuple[RoutingStatistics, ...]:
    greedy, bpe = (
        compile_pair(teacher, student, mode, student_encoder=encoder, cache_folder=cache_folder) for mode in Routing
    )
    return tuple(
        with_encoder_counts(tables.statistics, teacher, student, tables.phi, encoder) for tables in (greedy, bpe)
    )


def _seams(teacher: TokenizerProfile, encoder: ContentTokenizer, student: TokenizerProfile) -> dict[str, str]:
    """How the seam is settled for a response with and without a thinking opening, or why it cannot be."""
    tail = _opening(student)
    try:
        return {
            kind: render_prompt(teacher, encoder, _PROBE, None, None, tail, response).seam.value
            for kind, response in _RESPONSES.items()
        }
    except UnsupportedTemplateError as error:
        return dict.fromkeys(_RESPONSES, f"refused: {error.message}")
