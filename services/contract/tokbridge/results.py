"""What a teacher answers to one request: a summary (the trailer of the stream) and, with the rows, the whole result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Where the service spent the time of one response."""

    prepare_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What the trailer says about one response."""

    cases: Mapping[str, int]
    """Rows by name of `RowCase`."""
    seam: str
    """How the thinking seam was settled: none, shared, context, given, switched_off, cut (spec §3.2)."""
    notes: tuple[str, ...]
    prompt_tokens: int
    shared_prompt_tokens: int
    """Prompt tokens that came from a prefix computed once for several responses."""
    content_tokens: int
    """Teacher tokens of the content."""
    content_log_prob: float
    """Σ ln q of the realized teacher content tokens."""
    stop_log_prob: float
    """ln of the teacher's stop mass after the content."""
    scored_bytes: int
    """Content bytes scored: the response without what was given."""
    unresolved_mass: float = 0.0
    """Over the rows of cases aligned, interior and spanning: Σ of the mass on teacher tokens whose bytes some student
    token strictly extends. Divided by their number it bounds, under assumption A2, how far the mean row may be from the
    true marginal before chains or lookahead correct it (spec §5)."""
    lookahead_tail: float = 0.0
    """Over the same rows, mass of realized branches that `lookahead` left in place without looking; 0 if realized."""
    timings: Timings

    def to_proto(self, num_rows: int, checksum: int) -> teacher_pb2.ScoreTrailer:
        """Wire form; `checksum` is the one of `wire.checksum` over all rows sent."""
        times = {name.removesuffix("_s") + "_seconds": seconds for name, seconds in asdict(self.timings).items()}
        return teacher_pb2.ScoreTrailer(
            num_rows=num_rows,
            checksum=checksum,
            cases=self.cases,
            notes=self.notes,
            timings=teacher_pb2.Timings(**times),
            **{name: getattr(self, name) for name in _SCALARS},
        )

    @classmethod
    def from_proto(cls, trailer: teacher_pb2.ScoreTrailer) -> ScoreSummary:
        """From the wire form."""
        times = {field.name.removesuffix("_seconds") + "_s": value for field, value in trailer.timings.ListFields()}
        return cls(
            cases=dict(trailer.cases),
            notes=tuple(trailer.notes),
            timings=Timings(**times),
            **{name: getattr(trailer, name) for name in _SCALARS},
        )


_NOT_SCALARS = {"cases", "notes", "timings"}
_SCALARS = [name for name in ScoreSummary.__dataclass_fields__ if name not in _NOT_SCALARS]


@dataclass(frozen=True, kw_only=True)
class ScoreResult(ScoreSummary):
    """The rows of a whole response, and what it took to get them."""

    rows: TargetRows
    attempts: int
    """Calls made, the successful one included."""
    retries: Mapping[str, int]
    """Calls that failed and were made again, by error code."""
