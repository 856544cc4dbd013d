"""Responses that the teacher writes itself, in its own template and up to its own stop tokens, for a warm start.

Knows prompts and text; nothing of students and targets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, cast

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel

from tokbridge.errors import InvalidDataError, UnsupportedTemplateError
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.backends.lm_head import LmHead
from tokbridge_teacher.backends.model_loading import load_model

Conversation = list[dict[str, Any]]


@dataclass(frozen=True)
class GenerationSettings:
    """How responses are sampled; everything is passed on explicitly, nothing is taken from the model's own config."""

    samples: int = 1
    max_tokens: int = 512
    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_p: float = 1.0
    seed: int = 0
    batch_size: int = 16


@dataclass(frozen=True)
class WrittenResponse:
    """One response."""

    messages: Conversation
    response: str
    finish: Literal["stop", "length"]


class ResponseWriter:
    """Writes responses to conversations with one model."""

    def __init__(
        self, model: PreTrainedModel, profile: TokenizerProfile, name: str, settings: GenerationSettings
    ) -> None:
        if profile.template is None:
            raise UnsupportedTemplateError(f"{name} has no chat template.")
        self._model = model
        self._profile = profile
        self._template = profile.template
        self.name = name
        self.settings = settings

    @classmethod
    def load(cls, source: str, settings: GenerationSettings, *, dtype: str, device: str) -> ResponseWriter:
        """Load model and tokenizer of a folder, a GGUF folder or a hub id."""
        model = load_model(source, dtype=dtype, device=device)
        return cls(model, load_tokenizer(source, LmHead(model).size), source, settings)

    def write(self, conversations: Sequence[Conversation]) -> Iterator[list[WrittenResponse]]:
        """Responses in batches of at most `batch_size`, in the order of the conversations."""
        torch.manual_seed(self.settings.seed)
        wanted = [conversation for conversation in conversations for _ in range(self.settings.samples)]
        for start in range(0, len(wanted), self.settings.batch_size):
            yield self._write_batch(wanted[start : start + self.settings.batch_size])

    @torch.inference_mode()
    def _write_batch(self, conversations: Sequence[Conversation]) -> list[WrittenResponse]:
        prompts = [self._prompt_ids(conversation) for conversation in conversations]
        ids_BL, mask_BL = _padded_left(prompts)
        generate = cast(Callable[..., torch.Tensor], self._model.generate)
        output_BL = generate(
            input_ids=ids_BL.to(self._model.device),
            attention_mask=mask_BL.to(self._model.device),
            generation_config=self._generation_config(),
        )
        written_BL = output_BL[:, ids_BL.shape[1] :].cpu().numpy()
        return [self._response(*pair) for pair in zip(conversations, written_BL, strict=True)]

    def _prompt_ids(self, conversation: Conversation) -> list[int]:
        prompt = self._template.render_guarded(conversation, add_generation_prompt=True)
        return self._profile.prompt_tokenizer.encode(prompt).tolist()

    def _generation_config(self) -> GenerationConfig:
        settings = self.settings
        sampling: dict[str, Any] = {"do_sample": settings.temperature > 0}
        if settings.temperature > 0:
            sampling |= {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
        return GenerationConfig(
            max_new_tokens=settings.max_tokens,
            eos_token_id=sorted(self._profile.stop_ids),
            pad_token_id=self._profile.turn_end_id,
            **sampling,
        )

    def _response(self, conversation: Conversation, written: np.ndarray) -> WrittenResponse:
        """Content up to the first stop token; bytes cut inside a character at the end are dropped."""
        stops = np.flatnonzero(np.isin(written, list(self._profile.stop_ids)))
        content = written[: stops[0]] if len(stops) else written
        text = self._profile.vocabulary.content_of(content).decode("utf-8", errors="ignore")
        return WrittenResponse(conversation, text, "stop" if len(stops) else "length")


def read_prompts(path: Path, limit: int | None) -> list[Conversation]:
    """Conversations of a JSONL or Parquet file with a column `messages` or `prompt`.

    Raises:
        InvalidDataError: no such file, or a row without either column; names it.
    """
    if not path.is_file():
        raise InvalidDataError(f"{path} is not a file.")
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _jsonl_rows(path)
    return [_conversation(row, number) for number, row in enumerate(rows) if limit is None or number < limit]


def write_responses(
    writer: ResponseWriter, conversations: Sequence[Conversation], file: TextIO, on_written: Callable[[int], None]
) -> None:
    """Write one JSON line a response: `messages`, `response`, `finish`, `model`; tell how many after each batch."""
    for batch in writer.write(conversations):
        for written in batch:
            line = {
                "messages": written.messages,
                "response": written.response,
                "finish": written.finish,
                "model": writer.name,
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        on_written(len(batch))


def _conversation(row: dict[str, Any], number: int) -> Conversation:
    messages, prompt = row.get("messages"), row.get("prompt")
    if isinstance(messages, list) and messages:
        return [{key: value for key, value in message.items() if value is not None} for message in messages]
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    raise InvalidDataError(f"Row {number} has neither `messages` nor `prompt`.", row=number)


def _jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidDataError(f"Line {number + 1} of {path} is not JSON.", row=number) from error
            if not isinstance(row, dict):
                raise InvalidDataError(f"Line {number + 1} of {path} is not a JSON object.", row=number)
            yield row


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidDataError("Parquet needs pyarrow: pip install 'tokbridge[trainer]'.") from error
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _padded_left(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, int64 [B, L]."""
    width = max(map(len, prompts))
    ids_BL = torch.zeros((len(prompts), width), dtype=torch.long)
    mask_BL = torch.zeros_like(ids_BL)
    for row, prompt in enumerate(prompts):
        ids_BL[row, width - len(prompt) :] = torch.tensor(prompt)
        mask_BL[row, width - len(prompt) :] = 1
    return ids_BL, mask_BL
