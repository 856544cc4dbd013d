"""`make quickstart`: a real teacher, a student with another tokenizer, and the whole way between them.

Fetches the teacher, builds the student, lets the teacher write, starts it as a service, distils over the network,
evaluates before and after, writes a report, and stops all it started.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from build_student import build_student
from fetch_teacher import fetch_teacher
from packages import FetchError, cache_folder
from processes import ProcessError, run_tokbridge, running_teacher
from prompts import write_prompts
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from tokbridge.errors import TokbridgeError
from tokbridge_trainer.report import compare, read_run, share_of_gap_closed, write_report

HERE = Path(__file__).resolve().parent
GENERATE_TIMEOUT_S = 1800.0
TRAIN_TIMEOUT_S = 7200.0
console = Console(highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; the exit status is 0 when all of it worked."""
    options = _parse(arguments)
    disable_progress_bar()
    # So that being terminated, too, runs every `finally` on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    try:
        report = quickstart(options)
    except (FetchError, ProcessError, TokbridgeError) as error:
        console.print(f"quickstart failed: {error}", style="red", markup=False)
        return 1
    console.print(f"report: {report}\nmodel:  {options.out / 'model'}", markup=False)
    console.print(f"all of it took {time.monotonic() - started:.0f} s")
    return 0


def quickstart(options: argparse.Namespace) -> Path:
    """The whole way; returns the report's path."""
    cache, out = cache_folder(), options.out
    shutil.rmtree(out, ignore_errors=True)
    data = out / "data"
    with stage("teacher: SmolLM2-135M-Instruct"):
        teacher = fetch_teacher(cache)
    with stage("student: the teacher's body on DeepSeek-Coder's tokenizer"):
        student = build_student(teacher, cache)
    with stage(f"the teacher writes {options.responses} responses to learn from, {options.held_out} to evaluate on"):
        write_data(teacher, data, options)
    with running_teacher(teacher, out / "teacher.log") as address:
        console.print(f"teacher service at {address}", markup=False)
        with stage("distillation"):
            run_tokbridge(_train_arguments(student, data, out, address, options), TRAIN_TIMEOUT_S)
    show_outcome(out)
    notes = {
        "teacher": "SmolLM2-135M-Instruct, its own tokenizer of 49,152 tokens",
        "student": "the same body on DeepSeek-Coder's tokenizer of 32,022 tokens, embeddings averaged, untrained",
    }
    return write_report(out, "tokbridge quickstart", notes=notes)


def write_data(teacher: Path, data: Path, options: argparse.Namespace) -> None:
    """Prompts, and the teacher's responses to some of them: `teacher_evaluation.jsonl`, `teacher_train.jsonl`."""
    train, evaluation = write_prompts(data, seed=options.seed)
    held_out = evaluation.read_text(encoding="utf-8").splitlines()[: options.held_out]
    trained_on = train.read_text(encoding="utf-8").splitlines()[: options.responses]
    # One process writes both: loading the model takes as long as some dozen responses.
    prompts, written = data / "prompts.jsonl", data / "written.jsonl"
    _write_lines(prompts, [*held_out, *trained_on])
    generate = ["teacher", "generate", str(teacher), str(prompts), "--out", str(written), "--dtype", "float32"]
    generate += ["--max-tokens", "44", "--batch-size", "64", "--seed", str(options.seed)]
    run_tokbridge(generate, GENERATE_TIMEOUT_S)
    lines = written.read_text(encoding="utf-8").splitlines()
    _write_lines(data / "teacher_evaluation.jsonl", lines[: len(held_out)])
    _write_lines(data / "teacher_train.jsonl", lines[len(held_out) :])
    _write_lines(evaluation, held_out)


def show_outcome(out: Path) -> None:
    """Print the table of before and after."""
    evaluations = read_run(out).evaluations
    table = Table("on prompts not trained on", "before", "after", "better is", title="before and after")
    for row in compare(evaluations):
        style = "green" if row.improved else "red"
        table.add_row(row.label, f"{row.before:.3f}", f"[{style}]{row.after:.3f}[/]", row.better)
    console.print(table)
    closed = share_of_gap_closed(evaluations)
    if closed is not None:
        console.print(f"{100 * closed:.0f} % of the gap to the teacher's own bits per byte was closed")


@contextmanager
def stage(title: str) -> Iterator[None]:
    """Say what begins, and how long it took."""
    console.print(f"[bold]{title}[/]")
    start = time.monotonic()
    yield
    console.print(f"  {time.monotonic() - start:.0f} s", style="dim")


def _train_arguments(student: Path, data: Path, out: Path, address: str, options: argparse.Namespace) -> list[str]:
    values = {
        "student.model": student,
        "teacher.urls": json.dumps([address]),
        "prompts.files": json.dumps([str(data / "train.jsonl")]),
        "warm_start.responses": json.dumps([str(data / "teacher_train.jsonl")]),
        "eval.prompts": json.dumps([str(data / "evaluation.jsonl")]),
        "eval.responses": json.dumps([str(data / "teacher_evaluation.jsonl")]),
        "output_dir": out,
        "seed": options.seed,
    }
    overrides = [f"{name}={value}" for name, value in values.items()] + options.set
    return ["train", str(HERE / "train.yaml"), *(part for override in overrides for part in ("--set", override))]


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="output folder; emptied first")
    parser.add_argument("--responses", type=int, default=108, help="responses of the teacher to learn from")
    parser.add_argument("--held-out", type=int, default=40, help="prompts to evaluate on")
    parser.add_argument("--seed", type=int, default=0, help="of prompts, sampling and training")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override train.yaml")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
