"""Throughput through the socket beside the bare backend: SmolLM2-135M, concurrent clients in a process of their own.

Each round scores the same requests through gRPC, then runs the very batches that the service made of them on the
backend alone, rows dropped. Rounds alternate within one run; what counts is the median of the ratios. The requests are
groups that share a prompt, as rollouts do.

    python benchmarks/service_throughput.py [--clients 16] [--requests 48] [--rounds 5] [--words 90]
"""

from __future__ import annotations

import argparse
import asyncio
import pydoc_data.topics
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "quickstart"))

from fetch_teacher import fetch_teacher  # pyright: ignore[reportMissingImports]

from support.real_tokenizers import cache_root, real_tokenizer_folder
from support.served import served_over_grpc
from tokbridge.client import TeacherClient
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.backends.base import Backend, ScoreJob, Steps
from tokbridge_teacher.building import BuiltService, build_checked_service, load_backend
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.settings import ServeSettings

RESPONSES_A_PROMPT = 8
STUDENT = "qwen-3"


@dataclass
class Recorder:
    """A backend that remembers the batches it was given."""

    inner: Backend
    batches: list[list[ScoreJob]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        """As the backend."""
        self.batches.append(list(jobs))
        return self.inner.steps(jobs)

    def replay(self) -> tuple[float, int]:
        """Run what was remembered on the backend alone; seconds, and tokens of prompts and contents."""
        batches = [[_without_reader(job) for job in batch] for batch in self.batches]
        self.batches.clear()
        started = time.perf_counter()
        for batch in batches:
            self.inner.score(batch)
        return time.perf_counter() - started, sum(job.num_tokens for batch in batches for job in batch)


def _without_reader(job: ScoreJob) -> ScoreJob:
    return replace(job, cancelled=lambda: False, emit=lambda _: None, finish=lambda _: None, fail=_raise)


def _raise(error: Exception) -> None:
    raise error


def make_requests(count: int, words: int) -> list[ScoreRequest]:
    """Responses of about `words` words of the language reference, lengths varied, to a few shared questions."""
    profile = load_tokenizer(real_tokenizer_folder(STUDENT))
    tokenizer = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)
    text = " ".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).split()
    requests = []
    for number in range(count):
        length = words // 2 + (number * 37) % words
        start = (number * 911) % (len(text) - length)
        response = " ".join(text[start : start + length]).encode()
        question = f"Explain part {number // RESPONSES_A_PROMPT} of the reference, with an example."
        requests.append(
            ScoreRequest(
                messages=[{"role": "user", "content": question}],
                response=response,
                token_ids=tokenizer.segment(response).ids,
                stop_id=profile.turn_end_id,
            )
        )
    return requests


async def load(target: str, clients: int, requests: list[ScoreRequest]) -> None:
    """The other process: a round for every line on standard input; prints its seconds."""
    registration = StudentRegistration.from_profile(load_tokenizer(real_tokenizer_folder(STUDENT)))
    async with TeacherClient(target) as client:
        await client.connect(registration)
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            waiting = iter(requests)

            async def score_in_turn(waiting=waiting) -> None:
                for request in waiting:
                    await client.score(request)

            started = time.perf_counter()
            await asyncio.gather(*(score_in_turn() for _ in range(clients)))
            print(time.perf_counter() - started, flush=True)


def build() -> tuple[BuiltService, Recorder]:
    """The service over a recorded backend."""
    folder = fetch_teacher(cache_root())
    settings = ServeSettings(model=str(folder), dtype="float32", device="cpu", cache_dir=cache_root() / "routing")
    backend = load_backend(settings)
    self_test = backend.self_test()
    recorder = Recorder(backend)
    profile = load_tokenizer(settings.model, backend.describe().head_size)
    built = build_checked_service(settings, cast(Backend, recorder), profile, self_test)
    recorder.batches.clear()
    return built, recorder


async def measure(arguments: argparse.Namespace) -> list[tuple[float, float, int]]:
    """Seconds through the socket, seconds of the backend alone and tokens, for every round after the first."""
    built, recorder = await asyncio.to_thread(build)
    results = []
    async with served_over_grpc(built.service, 1 << 26) as target:
        command = [__file__, "--load", target, "--clients", str(arguments.clients)]
        command += ["--requests", str(arguments.requests), "--words", str(arguments.words)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while await process.stdout.readline() != b"ready\n":
                assert process.returncode is None, "the clients did not get ready"
            for number in range(arguments.rounds + 1):
                process.stdin.write(b"round\n")
                socket_s = float(await process.stdout.readline())
                backend_s, tokens = await asyncio.to_thread(recorder.replay)
                if number:  # the first warms up
                    results.append((socket_s, backend_s, tokens))
            process.stdin.close()
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
    built.stop(grace_s=1)
    built.close()
    return results


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--words", type=int, default=90)
    parser.add_argument("--load", metavar="TARGET", help="be the clients of this service")
    arguments = parser.parse_args()
    if arguments.load:
        requests = make_requests(arguments.requests, arguments.words)
        asyncio.run(load(arguments.load, arguments.clients, requests))
        return
    results = asyncio.run(measure(arguments))
    table = Table(title=f"{arguments.clients} clients, {arguments.requests} requests a round")
    for title in ("round", "tokens", "socket tokens/s", "backend tokens/s", "ratio"):
        table.add_column(title, justify="right")
    for number, (socket_s, backend_s, tokens) in enumerate(results, 1):
        figures = (f"{tokens / socket_s:.0f}", f"{tokens / backend_s:.0f}", f"{backend_s / socket_s:.3f}")
        table.add_row(str(number), str(tokens), *figures)
    console = Console()
    console.print(table)
    console.print(f"median ratio {statistics.median(backend_s / socket_s for socket_s, backend_s, _ in results):.3f}")


if __name__ == "__main__":
    main()
