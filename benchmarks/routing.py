"""Compiling φ of a real pair, beside the tokenizer library's own `encode_batch` of the same strings.

Medians of interleaved repeats, so that all figures see the same load. Targets: `greedy` 1.5 s on two cores, `bpe`
twice the library, either 0.1 s from the disk cache (spec §4).

    python benchmarks/routing.py [--teacher minimax] [--student qwen-3.5] [--repeats 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.real_tokenizers import real_tokenizer_folder
from tokbridge.modes import Routing
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.routing.pair_tables import PairTables, compile_pair
from tokbridge_teacher.segmentation import ContentTokenizer


def medians(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each action, the actions taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", default="minimax")
    parser.add_argument("--student", default="qwen-3.5")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    teacher_folder, student_folder = (real_tokenizer_folder(name) for name in (arguments.teacher, arguments.student))
    teacher, student = load_tokenizer(teacher_folder).vocabulary, load_tokenizer(student_folder)
    encoder = ContentTokenizer(student.files.tokenizer_json, student.vocabulary)
    library = Tokenizer.from_file(str(student_folder / "tokenizer.json"))
    texts = [token.decode(errors="replace") for token in teacher.token_bytes if token]

    def compiled(mode: Routing, cache_folder: Path | None) -> PairTables:
        return compile_pair(teacher, student.vocabulary, mode, student_encoder=encoder, cache_folder=cache_folder)

    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        counts = [compiled(mode, cache).statistics for mode in (Routing.GREEDY, Routing.BPE)]
        seconds = medians(
            {
                "library encode_batch": lambda: library.encode_batch(texts, add_special_tokens=False),
                "compile greedy": lambda: compiled(Routing.GREEDY, None),
                "compile bpe": lambda: compiled(Routing.BPE, None),
                "greedy from the disk cache": lambda: compiled(Routing.GREEDY, cache),
                "bpe from the disk cache": lambda: compiled(Routing.BPE, cache),
            },
            arguments.repeats,
        )
    table = Table(f"{arguments.teacher} → {arguments.student}", "seconds", "of the library's time")
    for name, value in seconds.items():
        table.add_row(name, f"{value:.3f}", f"{value / seconds['library encode_batch']:.3f}")
    console = Console()
    console.print(table)
    for count in counts:
        console.print(
            f"{count.routing}: {count.teacher_content_tokens:,} teacher tokens, {count.identical:,} identical, "
            f"{count.shortened:,} shortened, {count.unmapped:,} unmapped"
        )


if __name__ == "__main__":
    main()
