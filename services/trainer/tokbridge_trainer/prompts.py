"""Prompts: read from files, rendered, checked against the token limit, and put in a reproducible order.

The order is a pure function of the seed and the position, so a resumed run needs to know its step and nothing else.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetGenerationError

from tokbridge.conversation import dump_json, load_objects, message_to_proto
from tokbridge.errors import (
    ChatTemplateError,
    ContentDroppedByTemplateError,
    InvalidDataError,
    InvalidRequestError,
    MalformedConversationError,
)
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.data_order import index_at
from tokbridge_trainer.samples import ColumnValue, Prompt
from tokbridge_trainer.student_text import StudentText

_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
_REFUSED = (ChatTemplateError, ContentDroppedByTemplateError, MalformedConversationError)


@dataclass(frozen=True)
class PromptSet:
    """The usable prompts of a run."""

    prompts: list[Prompt]
    num_overlong: int
    """Prompts left out because they have too many tokens."""
    seed: int
    shuffle: bool

    def at(self, start: int, count: int) -> list[Prompt]:
        """Prompts number `start` … `start + count − 1` of the endless sequence of epochs."""
        size = len(self.prompts)
        return [self.prompts[index_at(start + i, size, self.seed, self.shuffle)] for i in range(count)]


@dataclass(frozen=True)
class FileRows:
    """Rows of several files, numbered through."""

    rows: list[dict[str, Any]]
    starts: list[tuple[int, str]]
    """Number of each file's first row, and its path; a file may come twice."""

    @contextmanager
    def located(self) -> Iterator[None]:
        """Errors about a row say which file it is in, and where."""
        try:
            yield
        except InvalidDataError as error:
            row = error.details.get("row")
            if not isinstance(row, int):
                raise
            start, path = [place for place in self.starts if place[0] <= row][-1]
            message = f"{error.message} (row {row - start} of {path}, counted from 0)"
            raise InvalidDataError(message, **(error.details | {"file": path})) from error.__cause__


def load_prompts(config: TrainConfig, text: StudentText) -> PromptSet:
    """Read and render the prompts that are trained on; errors as `load_prompt_files`."""
    return load_prompt_files(config.prompts.files, config.prompts.limit, config, text)


def load_evaluation_prompts(config: TrainConfig, text: StudentText) -> PromptSet | None:
    """Read and render the held-out prompts, if there are any."""
    if not config.eval.prompts:
        return None
    return load_prompt_files(config.eval.prompts, config.eval.limit, config, text)


def load_prompt_files(files: Sequence[str], limit: int | None, config: TrainConfig, text: StudentText) -> PromptSet:
    """Read and render prompts, and leave out overlong ones.

    Raises:
        InvalidDataError: a row cannot be used, a prompt is overlong and `overlong` is `error`, or none is left.
    """
    found = read_rows(files, limit)
    with found.located():
        prompts = [prompt_of(row, index, text, config.prompt_columns) for index, row in enumerate(found.rows)]
        kept = [prompt for prompt in prompts if len(prompt.token_ids) <= config.max_prompt_tokens]
        if config.overlong == "error" and len(kept) < len(prompts):
            longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
            raise InvalidDataError(
                f"{len(prompts) - len(kept)} prompts have more than {config.max_prompt_tokens} tokens, "
                f"row {longest.index} has {len(longest.token_ids)}",
                row=longest.index,
            )
    if not kept:
        raise InvalidDataError(f"no prompt has at most {config.max_prompt_tokens} tokens")
    return PromptSet(kept, len(prompts) - len(kept), config.seed, config.prompts.shuffle)


def read_rows(patterns: Sequence[str], limit: int | None) -> FileRows:
    """Rows of JSONL and Parquet files, in the order of the files.

    Raises:
        InvalidDataError: a pattern matches no file, or a file is of another kind or malformed.
    """
    rows: list[dict[str, Any]] = []
    starts: list[tuple[int, str]] = []
    for pattern in patterns:
        paths = sorted(glob.glob(pattern))
        if not paths:
            raise InvalidDataError(f"no file matches {pattern}")
        for path in paths:
            starts.append((len(rows), path))
            rows.extend(_read_file(path))
    return FileRows(rows[:limit], starts)


def prompt_of(row: Mapping[str, Any], index: int, text: StudentText, columns: Collection[str] = ()) -> Prompt:
    """Render the conversation of a row; `columns` of it travel with the prompt.

    Raises:
        InvalidDataError: the row holds no conversation, or one that the student's chat template refuses.
    """
    messages, tools = conversation_of(row, index), tools_of(row, index)
    try:
        return replace(text.prompt(index, messages, tools), columns=columns_of(row, index, columns))
    except _REFUSED as error:
        raise InvalidDataError(f"row {index}: {error.message}", row=index) from error


def conversation_of(row: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    """The messages of a row: its `messages`, or its `prompt` (text, which becomes a user turn, or messages).

    A last assistant turn is left out: it is what the student is to write itself. Keys that are null are left out, for
    a column type of Parquet or Arrow gives every message every key.
    """
    value = row.get("messages") or row.get("prompt")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise InvalidDataError(f"row {index} has neither `messages` nor a `prompt`", row=index)
    messages = [{k: v for k, v in message.items() if v is not None or k == "content"} for message in value]
    if len(messages) > 1 and messages[-1].get("role") == "assistant":
        messages = messages[:-1]
    try:
        for position, message in enumerate(messages):
            message_to_proto(message, position)
    except (TypeError, ValueError) as error:  # Parquet holds values, such as dates, that do not go into JSON
        raise InvalidDataError(f"row {index}: {error}", row=index, column="messages") from error
    return messages


def tools_of(row: Mapping[str, Any], index: int) -> list[dict[str, Any]] | None:
    """The tool definitions of a row, given as a list or as JSON text; None without."""
    value = row.get("tools")
    if value == "null":
        return None
    try:
        text = value if isinstance(value, str) else dump_json(value, "tools")
        return load_objects(text, "tools") or None
    except InvalidRequestError as error:
        raise InvalidDataError(f"row {index}: {error.message}", row=index, column="tools") from error


def columns_of(row: Mapping[str, Any], index: int, names: Collection[str]) -> dict[str, ColumnValue]:
    """Named columns of a row, without those that are missing or null.

    Raises:
        InvalidDataError: a value is neither text nor a number nor a truth value.
    """
    values = {name: row[name] for name in sorted(names) if row.get(name) is not None}
    for name, value in values.items():
        if not isinstance(value, ColumnValue):
            raise InvalidDataError(
                f"row {index}: column `{name}` is neither text nor a number; no rule can read it",
                row=index,
                column=name,
            )
    return values


def _read_file(path: str) -> list[dict[str, Any]]:
    builder = _BUILDERS.get(Path(path).suffix.lower())
    if builder is None:
        raise InvalidDataError(f"{path} is neither JSONL nor Parquet")
    try:
        return datasets.load_dataset(builder, data_files=path, split="train").to_list()
    except StopIteration as error:  # a JSON file of no bytes
        raise InvalidDataError(f"{path} is empty") from error
    except (DatasetGenerationError, OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise InvalidDataError(f"{path} cannot be read as {builder}: {error.__cause__ or error}") from error
