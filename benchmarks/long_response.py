"""A response of 27,648 tokens through the service path at two full vocabularies: peak memory, bytes a row.

The path is the service's own: prepared, queued, scored by the transformers backend, assembled, encoded; messages are
counted and dropped, as a network does. The teachers are Qwen3 and MiniMax-M2.7, tiny and random, but with their own
architecture, tokenizer and head size; the student is Qwen3.5. Each setting runs in a process of its own. Its figure is
the peak of resident memory beyond what the process held once model and routing tables were there; "chunk" is what one
chunk of logits and its fold onto the student's vocabulary take, rows × (teacher's head + student's vocabulary) × 4
bytes. Random weights give flat rows, so every row keeps all its cells: bytes a row are the most that the default
truncation sends. Linux only.

    python benchmarks/long_response.py [--tokens 27648] [--chunks 64 256]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pydoc_data.topics
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import MiniMaxM2Config, PretrainedConfig, Qwen3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from _loss_inputs import peak_memory_bytes

from support.real_tokenizers import real_tokenizer_folder
from support.requests_for import request_for
from tokbridge.registration import StudentRegistration
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge.v1 import teacher_pb2
from tokbridge_teacher.building import build_service
from tokbridge_teacher.protocols.messages import score_messages
from tokbridge_teacher.segmentation import ContentTokenizer
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.settings import ServeSettings

HEADS = {"qwen-3": 151_936, "minimax": 200_064}
"""Teachers by the name of their tokenizer, and the rows of their LM heads."""
STUDENT, STUDENT_HEAD = "qwen-3.5", 248_320
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1 << 16,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny_config(teacher: str) -> PretrainedConfig:
    """Two layers of the teacher's architecture under a head of its full size."""
    shape = {"vocab_size": HEADS[teacher], **SHAPE}
    if teacher == "minimax":
        return MiniMaxM2Config(**shape, num_local_experts=4, num_experts_per_tok=2)
    return Qwen3Config(**shape)


def save_teacher(teacher: str, folder: Path) -> None:
    """Random weights beside the real tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_config(teacher), dtype=torch.float32).save_pretrained(folder)
    for file in real_tokenizer_folder(teacher).iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)


def response_text(teacher_folder: Path, tokens: int) -> str:
    """English of the standard library, `tokens` teacher tokens of it."""
    profile = load_tokenizer(teacher_folder)
    text = "\n\n".join(pydoc_data.topics.topics.values()).encode()
    boundaries = ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary).segment(text).boundaries
    return text[: int(boundaries[tokens])].decode(errors="ignore")


class Sent:
    """What went out: messages of rows, their bytes, the trailer."""

    def __init__(self) -> None:
        self.rows = self.bytes = self.content_tokens = 0
        self.seconds = 0.0

    async def drain(self, service: TeacherService, student_id: str, text: str) -> None:
        """Score `text` and count what comes."""
        request = request_for(load_tokenizer(real_tokenizer_folder(STUDENT), STUDENT_HEAD), text, mass=0.0)
        started = time.perf_counter()
        async for serialized in score_messages(service, student_id, request):
            self.bytes += len(serialized)
            message = teacher_pb2.ScoreResponse.FromString(serialized)
            self.rows += len(message.rows.cases)
            self.content_tokens += message.trailer.content_tokens
        self.seconds = time.perf_counter() - started


async def score(folder: Path, tokens: int, chunk_rows: int) -> dict[str, float]:
    """Measure one setting in this process."""
    text = response_text(folder, tokens)
    student = StudentRegistration.from_profile(load_tokenizer(real_tokenizer_folder(STUDENT), STUDENT_HEAD))
    built = build_service(ServeSettings(model=str(folder), dtype="float32", device="cpu", chunk_rows=chunk_rows))
    registered = await built.service.register(lambda: student)
    sent = Sent()
    await sent.drain(built.service, registered.student_id, "A first response makes the rest of the tables. " * 20)
    sent = Sent()
    loop = asyncio.get_running_loop()

    def run() -> None:
        asyncio.run_coroutine_threadsafe(sent.drain(built.service, registered.student_id, text), loop).result()

    peak = await asyncio.to_thread(peak_memory_bytes, run)
    built.stop(grace_s=5)
    built.close()
    return {
        "peak": peak,
        "bytes_a_row": sent.bytes / sent.rows,
        "rows": sent.rows,
        "content_tokens": sent.content_tokens,
        "seconds": sent.seconds,
    }


def measure_apart(folder: Path, tokens: int, chunk_rows: int) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--folder", str(folder), "--tokens", str(tokens), "--chunks", str(chunk_rows)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Print the table; with `--folder`, one setting as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=27_648)
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--folder", type=Path, help="measure this teacher only, in this process")
    arguments = parser.parse_args()
    if arguments.folder:
        print(json.dumps(asyncio.run(score(arguments.folder, arguments.tokens, arguments.chunks[0]))))
        return
    columns = ("teacher", "head", "tokens", "rows", "chunk", "peak MB", "chunk MB", "B/row", "s")
    print("".join(f"{column:>9}" for column in columns))
    for teacher, head in HEADS.items():
        with tempfile.TemporaryDirectory() as folder:
            save_teacher(teacher, Path(folder))
            for chunk_rows in arguments.chunks:
                found = measure_apart(Path(folder), arguments.tokens, chunk_rows)
                chunk_mb = chunk_rows * (head + STUDENT_HEAD) * 4 / 1e6
                print(
                    f"{teacher:>9}{head:9d}{found['content_tokens']:9.0f}{found['rows']:9.0f}{chunk_rows:9d}"
                    f"{found['peak'] / 1e6:9.0f}{chunk_mb:9.0f}{found['bytes_a_row']:9.1f}{found['seconds']:9.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
