"""What truncation costs: bytes a row on the wire and relative error of the divergence, over top-k and covered mass.

Real weights: SmolLM2-135M-Instruct is the teacher; the students are its body transplanted onto two other tokenizers,
untrained. The response is what the teacher itself writes to a question, or with `--text` documentation, on which so
small a teacher is far less sure than one that is worth its name. The divergence (β = ½: JSD; 0: forward KL; 1: reverse
KL) is summed over content rows, on the truncated partition against the full one (spec §6, §7). A row takes 20 bytes and
each of its cells 4. Entries within the budget of 160 bytes at 1 % are marked.

    python benchmarks/wire_size.py [--tokens 192] [--chunk 32] [--text] [--beta 0.5]
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "quickstart"))

from build_student import mean_embeddings, merges_only  # pyright: ignore[reportMissingImports]
from fetch_teacher import fetch_teacher  # pyright: ignore[reportMissingImports]

from support.real_tokenizers import cache_root, real_tokenizer_folder
from tokbridge.modes import Routing, Spanning
from tokbridge.targets import TargetRows
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import marginalize
from tokbridge_teacher.targets.options import MAX_TOP_K, ScoringOptions
from tokbridge_teacher.targets.planning import build_plan

STUDENTS = ("deepseek-coder-33b-base", "qwen-3.5")
TOP_KS = (16, 24, 32, 48, 56, 64, 80, 128)
MASSES = (0.95, 0.98, 0.99, 0.995, 0.9985, 0.999, 1.0)
ROW_BYTES, CELL_BYTES = 20, 4
SKEW = 0.1
QUESTION = "Explain how to compute 12 * 14, then write a Python function that multiplies two numbers."
TEACHER_PROMPT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
STUDENT_PROMPT = f"user\n{QUESTION}\nassistant\n"


@dataclass(frozen=True)
class FullRow:
    """One row, all cells: target and student probabilities by falling target, and the emitted token's place."""

    target: NDArray[np.float64]
    student: NDArray[np.float64]
    emitted_place: int

    def cut(self, top_k: int, mass: float, beta: float) -> tuple[int, float]:
        """Cells kept, and the divergence on what is kept (spec §6)."""
        before = np.concatenate([[0.0], np.cumsum(self.target)[:-1]])
        keep = (np.arange(len(self.target)) < top_k) & (before < (mass if mass < 1 else np.inf)) & (self.target > 0)
        keep[self.emitted_place] = True
        return int(keep.sum()), self.divergence(keep, beta)

    def divergence(self, keep: NDArray[np.bool_] | slice, beta: float) -> float:
        """Of the kept cells and the rest (spec §7)."""
        t, p = with_rest(self.target[keep]), with_rest(self.student[keep])
        if beta == 0:
            return kullback_leibler(t, p)
        if beta == 1:
            return kullback_leibler(p, (1 - SKEW) * t + SKEW * p)
        middle = beta * t + (1 - beta) * p
        return beta * kullback_leibler(t, middle) + (1 - beta) * kullback_leibler(p, middle)


def with_rest(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.append(probabilities, max(1.0 - probabilities.sum(), 0.0))


def kullback_leibler(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float((a * (np.log(np.maximum(a, 1e-300)) - np.log(np.maximum(b, 1e-300)))).sum())


class Pair:
    """The teacher and one student, with the models' log-probabilities of one text."""

    def __init__(self, teacher: Path, student_name: str, tokens: int, chunk: int, *, is_text: bool) -> None:
        self.chunk = chunk
        self.teacher, self.student = load_tokenizer(teacher), load_tokenizer(real_tokenizer_folder(student_name))
        teacher_encoder, student_encoder = (
            ContentTokenizer(side.files.tokenizer_json, side.vocabulary) for side in (self.teacher, self.student)
        )
        library = Tokenizer.from_file(str(teacher / "tokenizer.json"))
        prompt = library.encode(TEACHER_PROMPT, add_special_tokens=False).ids
        model: Any = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
        text = "".join(pydoc_data.topics.topics[name] for name in ("for", "while", "exprlists")).encode()
        by_teacher = teacher_encoder.segment(text).ids[:tokens].tolist() if is_text else written(model, prompt, tokens)
        self.content = self.teacher.vocabulary.content_of(by_teacher)
        self.segmentation = teacher_encoder.segment(self.content)
        self.student_ids = student_encoder.segment(self.content).ids
        self.teacher_hidden, self.teacher_head = run(model, prompt, self.segmentation.ids)
        transplant(model, self.student, merges_only(teacher))
        student_prompt = student_encoder.segment(STUDENT_PROMPT.encode()).ids.tolist()
        self.student_hidden, self.student_head = run(model, student_prompt, self.student_ids)

    @torch.no_grad()
    def rows(self) -> Iterator[FullRow]:
        """All content rows."""
        tables = compile_pair(
            self.teacher.vocabulary, self.student.vocabulary, Routing.GREEDY, student_encoder=None, cache_folder=None
        )
        plan = build_plan(
            tables,
            self.segmentation,
            self.student_ids,
            self.content,
            teacher_stop_ids=self.teacher.stop_ids,
            stop_id=None,
            turn_end_id=self.student.turn_end_id,
            given_bytes=0,
            options=ScoringOptions(Routing.GREEDY, Spanning.REALIZED, MAX_TOP_K, 1.0),
        )
        assembler, device_tables = RowAssembler(plan, tables), tables.on_device("cpu")
        for start in range(0, plan.num_positions, self.chunk):
            stop = min(start + self.chunk, plan.num_positions)
            logits = self.teacher_hidden[start:stop] @ self.teacher_head.T
            yield from self._full_rows(assembler.add(marginalize(logits, plan.slice(start, stop), device_tables)))

    def _full_rows(self, rows: TargetRows) -> Iterator[FullRow]:
        for index in np.flatnonzero(rows.has_target()).tolist():
            row = rows.first_row + index
            cells = slice(int(rows.row_offsets[index]), int(rows.row_offsets[index + 1]))
            ids = rows.cell_ids[cells]
            log_probs = (self.student_head @ self.student_hidden[row]).double().log_softmax(0)
            yield FullRow(
                np.exp(rows.cell_log_probs[cells].astype(np.float64)),
                log_probs[torch.as_tensor(ids.astype(np.int64))].exp().numpy(),
                int(np.flatnonzero(ids == self.student_ids[row])[0]),
            )


@torch.no_grad()
def run(model: Any, prompt: list[int], ids: NDArray[np.int32]) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [len(ids) + 1, h] that predict each token and the one after, and the head [V, h]."""
    hidden = model.get_decoder()(torch.tensor([[*prompt, *ids.tolist()]])).last_hidden_state[0, len(prompt) - 1 :]
    return hidden, model.get_output_embeddings().weight.detach().clone()


def written(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What the model answers, greedily."""
    return model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False)[0, len(prompt) :].tolist()


def transplant(model: Any, student: TokenizerProfile, merges: Tokenizer) -> None:
    """Give the model embeddings for the student's tokens, each the mean of its bytes' pieces."""
    old = model.get_input_embeddings().weight.detach().clone()
    embeddings = mean_embeddings(student.vocabulary, merges, old)
    model.resize_token_embeddings(len(embeddings), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(embeddings)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--chunk", type=int, default=32)
    parser.add_argument("--beta", type=float, default=0.5)
    arguments = parser.parse_args()
    teacher = fetch_teacher(cache_root())
    for name in STUDENTS:
        rows = list(Pair(teacher, name, arguments.tokens, arguments.chunk, is_text=arguments.text).rows())
        full = sum(row.divergence(slice(None), arguments.beta) for row in rows)
        title = f"SmolLM2-135M-Instruct → {name}: {len(rows)} rows, β {arguments.beta}, mean divergence "
        title += f"{full / len(rows):.4f}; bytes a row / error %"
        table = Table("mass", *(f"top {k}" for k in TOP_KS), title=title)
        for mass in MASSES:
            entries = []
            for top_k in TOP_KS:
                counts, values = zip(*(row.cut(top_k, mass, arguments.beta) for row in rows), strict=True)
                num_bytes = ROW_BYTES + CELL_BYTES * float(np.mean(counts))
                error = 100 * (1 - sum(values) / full)
                mark = "*" if num_bytes <= 160 and error <= 1 else ""
                entries.append(f"{num_bytes:.0f} / {error:.2f}{mark}")
            table.add_row(f"{mass}", *entries)
        Console(width=150).print(table)


if __name__ == "__main__":
    main()
