"""`tokbridge teacher generate MODEL PROMPTS --out FILE`: responses that the teacher writes, for a warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from tokbridge_teacher.offline.generation import GenerationSettings, ResponseWriter, read_prompts, write_responses


def run(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF folder or a hub id.")],
    prompts: Annotated[Path, typer.Argument(help="JSONL or Parquet with a column `messages` or `prompt`.")],
    out: Annotated[Path, typer.Option(help="JSONL to write: messages, response, finish, model.")],
    samples: Annotated[int, typer.Option(min=1, help="Responses a prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Teacher tokens a response at most.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Nucleus; 1 leaves the distribution as it is.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Responses written together.")] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts used, from the first on.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
) -> None:
    """Write teacher responses to prompts as JSONL."""
    conversations = read_prompts(prompts, limit)
    settings = GenerationSettings(
        samples=samples,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
    )
    writer = ResponseWriter.load(model, settings, dtype=dtype, device=device)
    with Progress() as progress, out.open("w", encoding="utf-8") as file:
        task = progress.add_task("responses", total=len(conversations) * samples)
        write_responses(writer, conversations, file, lambda count: progress.advance(task, count))
