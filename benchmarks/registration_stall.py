"""How long a service keeps others waiting while a student with a large tokenizer registers, over real sockets.

`/healthz` is asked again and again while the registration is under way; what counts is the longest answer. Most of what
is left of it is one call of the tokenizers library, which lets no other thread run while it reads a `tokenizer.json`.

    python benchmarks/registration_stall.py [--student gemma3]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import httpx
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.real_tokenizers import REAL_TOKENIZERS, real_tokenizer_folder
from support.teacher_process import running_teacher
from support.tiny_models import TINY_TEACHER, save_tiny_model
from tokbridge.client import StudentRegistration, TeacherClient
from tokbridge.tokenizer_profile import load_tokenizer

PAUSE_S = 0.01


async def longest_answer_s(url: str, until: asyncio.Event) -> float:
    """Of `/healthz`, asked until the event is set."""
    longest = 0.0
    async with httpx.AsyncClient(timeout=60) as http:
        while not until.is_set():
            started = time.perf_counter()
            (await http.get(f"{url}/healthz")).raise_for_status()
            longest = max(longest, time.perf_counter() - started)
            await asyncio.sleep(PAUSE_S)
    return longest


async def measure(student: StudentRegistration, grpc: str, http: str) -> tuple[float, float, float]:
    """Seconds of the registration; of the longest answer without it; of the longest answer beside it."""
    idle, registered = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_later(2.0, idle.set)
    before_s = await longest_answer_s(http, idle)
    asking = asyncio.create_task(longest_answer_s(http, registered))
    started = time.perf_counter()
    async with TeacherClient(grpc, connect_timeout_s=600, max_divergence=None) as client:
        await client.connect(student)
    seconds = time.perf_counter() - started
    registered.set()
    return seconds, before_s, await asking


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--student", choices=REAL_TOKENIZERS, default="gemma3")
    arguments = parser.parse_args()
    folder = real_tokenizer_folder(arguments.student)
    student = StudentRegistration.from_profile(load_tokenizer(folder))
    with tempfile.TemporaryDirectory() as scratch:
        model = save_tiny_model(TINY_TEACHER, Path(scratch) / "teacher")
        with running_teacher(model, Path(scratch) / "log") as teacher:
            seconds, before_s, beside_s = asyncio.run(measure(student, teacher.grpc, teacher.http))
    megabytes = (folder / "tokenizer.json").stat().st_size / 1e6
    console = Console()
    console.print(f"{arguments.student}: tokenizer.json of {megabytes:.1f} MB, registered in {seconds:.2f} s")
    console.print(f"longest answer of /healthz: {before_s:.3f} s before, {beside_s:.3f} s beside the registration")


if __name__ == "__main__":
    main()
