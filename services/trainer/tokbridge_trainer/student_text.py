"""The student's side of text: renders conversations into its prompt ids and cuts content into its tokens.

Built on the contract's tokenizer profile, so that trainer and teacher read a tokenizer in the same way. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tokbridge.encoders import content_encoder
from tokbridge.errors import InvalidConfigError, UnsupportedTemplateError
from tokbridge.student_tokenizer import StudentTokenizer
from tokbridge.tokenizer_files import load_tokenizer_files
from tokbridge.tokenizer_guard import check_tokenizer_class
from tokbridge.tokenizer_profile import TokenizerProfile, profile_from_files
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.samples import Prompt

JsonObject = dict[str, Any]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""What `write_tokenizer_files` writes, the last one where the student has a template of its own."""


class StudentText:
    """Tokenizer and chat template of the student."""

    def __init__(self, profile: TokenizerProfile, arguments: Mapping[str, Any], tail: str | None = None) -> None:
        """Keep a profile and how its template is to be used.

        Args:
            arguments: extra arguments of the chat template.
            tail: g_s, where the configuration knows it better than the template does (spec §3).

        Raises:
            UnsupportedTemplateError: the student has no chat template.
        """
        if profile.template is None:
            raise UnsupportedTemplateError("the student has no chat template; set student.chat_template")
        self.profile = profile
        self._tokenizer = StudentTokenizer(profile, dict(arguments), tail)

    def prompt(self, index: int, messages: list[JsonObject], tools: list[JsonObject] | None) -> Prompt:
        """Render a conversation, with the generation prompt at its end, and tokenize it.

        Raises:
            TokbridgeError: the template refuses the conversation.
        """
        token_ids = self._tokenizer.prompt_ids(messages, tools)
        return Prompt(index, messages, tools, token_ids, self._tokenizer.tail(messages, tools))

    def content_ids(self, content: bytes) -> NDArray[np.int32]:
        """[N] ids that the student's own encoder writes for UTF-8 content; control-token text stays text.

        Raises:
            TokensDoNotSpellResponseError: the tokenizer cannot spell it.
        """
        encoding = self._content_encoder.encode(content.decode(), add_special_tokens=False)
        ids = np.array(encoding.ids, np.int32)
        self.profile.vocabulary.check_spells(ids, content)
        return ids

    @cached_property
    def _content_encoder(self) -> Tokenizer:
        return content_encoder(json.loads(self.profile.files.tokenizer_json), set(self.profile.control_ids.values()))


def load_student_text(config: TrainConfig) -> StudentText:
    """Tokenizer, chat template and byte vocabulary of the configured student.

    Raises:
        InvalidConfigError: `student.chat_template` cannot be read.
        TokenizerMismatchError: users who load the student with transformers would get other ids than it is trained on.
        TokbridgeError: the tokenizer cannot be used.
    """
    files = load_tokenizer_files(config.student.model)
    check_tokenizer_class(config.student.model)
    if config.student.chat_template is not None:
        files = replace(files, chat_template=_read_template(config.student.chat_template))
    profile = profile_from_files(files)
    return StudentText(profile, config.chat_template_kwargs, config.student.generation_prompt_tail)


def write_tokenizer_files(profile: TokenizerProfile, folder: Path) -> None:
    """Put the tokenizer and the chat template beside a model's weights, as they were read."""
    files = profile.files
    (folder / "tokenizer.json").write_text(files.tokenizer_json, encoding="utf-8")
    tokenizer_config = {name: value for name, value in files.tokenizer_config.items() if name != "chat_template"}
    text = json.dumps(tokenizer_config, ensure_ascii=False, indent=2)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    if files.chat_template is not None:
        (folder / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}", field="student.chat_template") from None
    except UnicodeDecodeError:
        raise InvalidConfigError(f"{path} is not UTF-8 text", field="student.chat_template") from None
