"""Segmentation, alignment and plan of one long response, beside what the tokenizer library itself takes for it.

The response is English text of the standard library, segmented canonically by teacher and student. Target: 27,648
teacher tokens in 100 ms beyond the library. The first plan of a pair also compiles φ_r of the prefixes it meets; both
are shown.

    python benchmarks/response_plan.py [--tokens 27648] [--repeats 7]
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from tokenizers import Tokenizer

from support.real_tokenizers import real_tokenizer_folder
from tokbridge.modes import Routing, Spanning
from tokbridge.targets import RowCase
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import ContentTokenizer, Segmentation
from tokbridge_teacher.targets.options import ScoringOptions
from tokbridge_teacher.targets.plan import ResponsePlan
from tokbridge_teacher.targets.planning import build_plan

STUDENT = "qwen-3.5"
TEACHERS = ("qwen-3", "glm-z1-9b-0414", "minimax")
MODES: tuple[Routing, ...] = tuple(Routing)


def seconds_of(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


class Side:
    """One tokenizer: profile, content encoder, and the library's encoder of its own file."""

    def __init__(self, name: str) -> None:
        folder = real_tokenizer_folder(name)
        self.profile: TokenizerProfile = load_tokenizer(folder)
        self.encoder = ContentTokenizer(self.profile.files.tokenizer_json, self.profile.vocabulary)
        self.library = Tokenizer.from_file(str(folder / "tokenizer.json"))


def response_of(teacher: Side, tokens: int) -> bytes:
    """Text of about `tokens` teacher tokens."""
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()
    return text[: int(teacher.encoder.segment(text).boundaries[tokens])].decode(errors="ignore").encode()


def measure(teacher: Side, student: Side, mode: Routing, tokens: int, repeats: int) -> list[str]:
    """A row of the table for one pair and routing mode."""
    content = response_of(teacher, tokens)
    student_ids = student.encoder.segment(content).ids
    tables = compile_pair(
        teacher.profile.vocabulary, student.profile.vocabulary, mode, student_encoder=student.encoder, cache_folder=None
    )

    def plan(segmentation: Segmentation) -> ResponsePlan:
        return build_plan(
            tables,
            segmentation,
            student_ids,
            content,
            teacher_stop_ids=teacher.profile.stop_ids,
            stop_id=None,
            turn_end_id=student.profile.turn_end_id,
            given_bytes=0,
            options=ScoringOptions(mode, Spanning.REALIZED, 64, 1.0),
        )

    text, segmentation = content.decode(), teacher.encoder.segment(content)
    _ = student.profile.vocabulary.is_whitespace  # made once per student
    first = seconds_of(lambda: plan(segmentation))
    library, whole = [], []
    for _ in range(repeats):
        library.append(seconds_of(lambda: teacher.library.encode(text, add_special_tokens=False)))
        whole.append(seconds_of(lambda: plan(teacher.encoder.segment(content))))
    beyond = statistics.median(own - lib for own, lib in zip(whole, library, strict=True))
    base = statistics.median(library)
    cases = Counter(RowCase(case).name.lower() for case in plan(segmentation).cases.tolist())
    shares = ", ".join(f"{case} {100 * count / len(student_ids):.1f} %" for case, count in cases.most_common())
    return [mode, f"{1e3 * base:.0f}", f"{1e3 * beyond:.0f}", f"{1 + beyond / base:.2f}", f"{1e3 * first:.0f}", shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=27_648)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    table = Table("teacher", "routing", "library ms", "beyond it ms", "ratio", "first plan ms", "rows")
    student = Side(STUDENT)
    for name in TEACHERS:
        teacher = Side(name)
        for mode in MODES:
            table.add_row(name, *measure(teacher, student, mode, arguments.tokens, arguments.repeats))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
