"""What a user asks of a pair's routing before a run: how much is identical, shortened, lost, routed to dead tokens.

Counts over the teacher's content tokens. Knows tables, nothing of text or probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokbridge.modes import Routing
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.segmentation import ContentTokenizer


@dataclass(frozen=True)
class RoutingStatistics:
    """Counts over teacher content tokens; None: not known (needs the student's encoder)."""

    routing: Routing
    teacher_content_tokens: int
    identical: int
    """φ gives a student token of the same bytes."""
    shortened: int
    """φ gives a shorter one."""
    unmapped: int
    compile_seconds: float
    from_cache: bool
    routed_to_dead_tokens: int | None = None
    """φ gives a token that the student's encoder never emits for that token's bytes (spec §9)."""
    not_what_the_encoder_emits: int | None = None
    """φ differs from the first token of the student's encoder."""


def count_routes(
    teacher: ByteVocabulary,
    student: ByteVocabulary,
    phi: NDArray[np.int32],
    routing: Routing,
    compile_seconds: float,
    from_cache: bool,
) -> RoutingStatistics:
    """Count what φ (int32 [V]) alone tells."""
    content = teacher.lengths >= 0
    mapped = content & (phi >= 0)
    identical = mapped & (student.lengths[phi] == teacher.lengths)
    return RoutingStatistics(
        routing,
        teacher_content_tokens=int(content.sum()),
        identical=int(identical.sum()),
        shortened=int((mapped & ~identical).sum()),
        unmapped=int((content & ~mapped).sum()),
        compile_seconds=compile_seconds,
        from_cache=from_cache,
    )


def with_encoder_counts(
    statistics: RoutingStatistics,
    teacher: ByteVocabulary,
    student: ByteVocabulary,
    phi: NDArray[np.int32],
    encoder: ContentTokenizer,
) -> RoutingStatistics:
    """Add the counts that need the student's encoder (it encodes every teacher token: a second or two).

    Strings that are not UTF-8 by themselves have no encoding and count as neither.
    """
    mapped = np.flatnonzero(phi >= 0)
    emitted = encoder.first_tokens([teacher.token_bytes[i] or b"" for i in mapped.tolist()])
    differs = (emitted >= 0) & (student.canonical_ids[emitted] != phi[mapped])
    targets = np.unique(phi[mapped])
    own = encoder.first_tokens([student.token_bytes[i] or b"" for i in targets.tolist()])
    dead = targets[(own >= 0) & (student.canonical_ids[own] != targets)]
    return replace(
        statistics,
        routed_to_dead_tokens=int(np.isin(phi[mapped], dead).sum()),
        not_what_the_encoder_emits=int(differs.sum()),
    )
