"""The paper's three pairs on reasoning-like text, beside the paper's own figures (its Table D.2).

Usage: python benchmarks/relations.py
The text is the worked solutions of the CHAMP data set (registry package `champ-dataset`).
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.real_tokenizers import Package, fetch_archive, real_tokenizer_folder
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.offline.comparison import RELATIONS, compare_boundaries
from tokbridge_teacher.segmentation import ContentTokenizer

CHAMP = Package(
    "pip",
    "champ-dataset==1.0.0",
    "champ_dataset-1.0.0-py3-none-any.whl",
    "aa59df5ae28e2ec76a401a46faf3d6395920be8009a01ce451f7d5c131d82201",
)
STUDENT = "qwen-3.5"
# Relations in per cent of student positions, and span Jaccard, as the paper prints them.
PAPER = {
    "qwen-3": ((99.65, 0.27, 0.06, 0.02), 0.92),
    "glm-z1-9b-0414": ((93.68, 6.24, 0.06, 0.02), 0.87),
    "minimax": ((94.75, 4.77, 0.37, 0.10), 0.81),
}


def solutions() -> list[bytes]:
    """Steps of CHAMP's solutions. Each on its own: the data set does not say what stood between them."""
    with zipfile.ZipFile(fetch_archive(CHAMP)) as wheel:
        problems = json.loads(wheel.read("champ_dataset/dataset_files/v0.json"))["problems"].values()
    return [step["_text"].encode() for problem in problems for step in problem["solution"]["steps"]]


def encoder(name: str) -> ContentTokenizer:
    profile = load_tokenizer(real_tokenizer_folder(name))
    return ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)


def pooled(teacher: ContentTokenizer, student: ContentTokenizer, texts: list[bytes]) -> tuple[list[float], float, int]:
    """Relation shares over all student positions, span Jaccard over all spans, and the number of positions."""
    comparisons = [compare_boundaries(teacher.segment(t).boundaries, student.segment(t).boundaries) for t in texts]
    positions = np.array([c.student_tokens for c in comparisons])
    shares = [
        float(np.average([c.relation_shares[name] for c in comparisons], weights=positions)) for name in RELATIONS
    ]
    totals = np.array([c.student_tokens + c.teacher_tokens for c in comparisons])
    jaccards = np.array([c.span_jaccard for c in comparisons])
    shared = (totals * jaccards / (1 + jaccards)).sum()
    return shares, float(shared / (totals.sum() - shared)), int(positions.sum())


def main() -> None:
    texts, student = solutions(), encoder(STUDENT)
    table = Table("teacher → Qwen3.5", *(f"{name} %" for name in RELATIONS), "span Jaccard", "student positions")
    for name, (paper_shares, paper_jaccard) in PAPER.items():
        shares, jaccard, positions = pooled(encoder(name), student, texts)
        table.add_row(f"{name}, CHAMP", *(f"{100 * share:.2f}" for share in shares), f"{jaccard:.3f}", f"{positions:,}")
        table.add_row("  paper", *(f"{share:.2f}" for share in paper_shares), f"{paper_jaccard:.2f}", "")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
