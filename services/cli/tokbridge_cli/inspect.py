"""`tokbridge inspect TEACHER STUDENT [--text FILE]`: prints what a pair of tokenizers has in common, before a run."""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tokbridge.errors import InvalidDataError, TokenizerMismatchError
from tokbridge.hub import local_folder
from tokbridge.tokenizer_guard import check_tokenizer_class
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.offline.inspection import PairReport, SideReport, inspect_pair
from tokbridge_teacher.settings import RequestLimits

ROW_BYTES, CELL_BYTES = 20, 4
DEFAULT_TOP_K = RequestLimits().default_top_k


def run(
    teacher: Annotated[str, typer.Argument(help="Folder, GGUF folder or hub id of the teacher.")],
    student: Annotated[str, typer.Argument(help="Folder, GGUF folder or hub id of the student.")],
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to compare on; else Python's own manual.")] = None,
    top_k: Annotated[
        int, typer.Option(help="Cells kept a row, for the size on the wire.")
    ] = RequestLimits().default_top_k,
    cache_dir: Annotated[Path | None, typer.Option(help="Folder for compiled routing tables.")] = None,
) -> None:
    """Print the report of a pair."""
    content = _read(text) if text else "\n\n".join(topics.values()).encode()
    profiles = load_tokenizer(teacher), load_tokenizer(student)
    report = inspect_pair(*profiles, content, cache_dir)
    console = Console()
    for table in (_sides(report), _routing(report), _text(report, top_k)):
        console.print(table)
    for side in (report.teacher, report.student):
        for note in side.notes:
            console.print(f"{side.name}: {note}", markup=False)
    for source, profile in zip((teacher, student), profiles, strict=True):
        _warn_of_class(console, source, profile)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidDataError(f"cannot read {path}: {error.strerror}") from error


def _warn_of_class(console: Console, source: str, profile: TokenizerProfile) -> None:
    if not (local_folder(source) / "tokenizer.json").is_file():  # a GGUF file's is inside
        return
    try:
        check_tokenizer_class(source)
    except TokenizerMismatchError as error:
        console.print(f"{profile.name}: {error.message}", markup=False, style="yellow")


def _sides(report: PairReport) -> Table:
    table = Table("", "teacher", "student", title="Tokenizers")
    sides = (report.teacher, report.student)
    table.add_row("name", *(side.name for side in sides))
    table.add_row("vocabulary (head rows)", *(f"{side.vocabulary_size:,}" for side in sides))
    table.add_row("content tokens", *(f"{side.content_tokens:,}" for side in sides))
    shares = (f"{report.shared_tokens:,} ({report.shared_tokens / side.content_tokens:.1%})" for side in sides)
    table.add_row("tokens shared with the other", *shares)
    table.add_row("stop set", *(_stops(side) for side in sides))
    table.add_row("thinking opening", *(repr(side.thinking_opening) for side in sides))
    table.add_row("bytes no token spells alone", *(_bytes(side.unspellable_bytes) for side in sides))
    return table


def _stops(side: SideReport) -> str:
    return "\n".join(f"{token_id} {text}" for token_id, text in side.stop_tokens.items())


def _bytes(values: tuple[int, ...]) -> str:
    shown = " ".join(f"{value:02x}" for value in values[:8])
    return f"{len(values)}: {shown}{' …' if len(values) > 8 else ''}" if values else "none"


def _routing(report: PairReport) -> Table:
    names = [statistics.routing for statistics in report.routing]
    table = Table("teacher content tokens", *names, title="Routing φ")
    total = report.routing[0].teacher_content_tokens
    for label, field in (
        ("to a student token of the same bytes", "identical"),
        ("to a shorter student token", "shortened"),
        ("unmapped", "unmapped"),
        ("to a token the student's encoder never emits", "routed_to_dead_tokens"),
        ("not what the student's encoder emits first", "not_what_the_encoder_emits"),
    ):
        values = (getattr(statistics, field) for statistics in report.routing)
        table.add_row(label, *(f"{value:,} ({value / total:.1%})" for value in values))
    table.add_row("compiled in", *(f"{statistics.compile_seconds:.2f} s" for statistics in report.routing))
    return table


def _text(report: PairReport, top_k: int) -> Table:
    comparison = report.comparison
    table = Table("", "", title=f"On {comparison.content_bytes:,} bytes of text")
    table.add_row("teacher tokens", f"{comparison.teacher_tokens:,}")
    table.add_row("student tokens", f"{comparison.student_tokens:,}")
    shares = " / ".join(f"{share:.2%}" for share in comparison.relation_shares.values())
    table.add_row(f"student positions {' / '.join(comparison.relation_shares)}", shares)
    table.add_row("span Jaccard", f"{comparison.span_jaccard:.3f}")
    for case, share in report.cases.items():
        table.add_row(f"rows {case}", f"{share:.3%}")
    table.add_row("rows of white space only", f"{report.whitespace_share:.2%}")
    for kind, seam in report.seams.items():
        table.add_row(f"seam, {kind} response", seam)
    table.add_row(f"bytes a row on the wire, top-k {top_k}", f"at most {ROW_BYTES + CELL_BYTES * (top_k + 1)}")
    return table
