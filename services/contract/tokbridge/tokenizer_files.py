"""The files that define a tokenizer, read from a folder, a GGUF file or a hub id.

The module reads and returns them as they are; what they mean is `tokenizer_profile`'s business. No weights are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokbridge.errors import InvalidVocabularyError
from tokbridge.hub import local_folder


@dataclass(frozen=True)
class TokenizerFiles:
    """Contents of a tokenizer's files; a missing one is {} or None."""

    name: str
    tokenizer_json: str
    tokenizer_config: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    generation_config: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None


def load_tokenizer_files(source: str | Path) -> TokenizerFiles:
    """Read the tokenizer files of `source`: a folder with `tokenizer.json`, a GGUF file or its folder, or a hub id.

    Raises:
        InvalidVocabularyError: there is no tokenizer that can be read from its own file.
        InvalidConfigError: there is neither a folder nor a file, and it is no hub id.
        HubError: a hub id that cannot be fetched.
    """
    path = local_folder(source)
    return _load_local(path) if path == Path(source) else _load_folder(path, str(source))


def _load_local(path: Path) -> TokenizerFiles:
    folder = path if path.is_dir() else path.parent
    if (folder / "tokenizer.json").is_file():
        return _load_folder(folder, folder.resolve().name)
    gguf_files = sorted(folder.glob("*.gguf")) if path.is_dir() else [path]
    if len(gguf_files) != 1:
        raise InvalidVocabularyError(
            f"{path} holds neither a tokenizer.json nor exactly one GGUF file; "
            "a slow tokenizer must be saved as a fast one first (AutoTokenizer…save_pretrained)"
        )
    from tokbridge.gguf_tokenizer import read_gguf_tokenizer

    gguf = read_gguf_tokenizer(gguf_files[0])
    return TokenizerFiles(
        name=folder.resolve().name,
        tokenizer_json=gguf.tokenizer_json,
        tokenizer_config=gguf.tokenizer_config,
        config=_read_json(folder / "config.json"),
        generation_config=_read_json(folder / "generation_config.json"),
        chat_template=gguf.chat_template,
    )


def _load_folder(folder: Path, name: str) -> TokenizerFiles:
    tokenizer_json = folder / "tokenizer.json"
    if not tokenizer_json.is_file():
        raise InvalidVocabularyError(f"{name} has no tokenizer.json")
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    return TokenizerFiles(
        name=name,
        tokenizer_json=tokenizer_json.read_text(encoding="utf-8"),
        tokenizer_config=tokenizer_config,
        config=_read_json(folder / "config.json"),
        generation_config=_read_json(folder / "generation_config.json"),
        chat_template=_chat_template(folder, tokenizer_config),
    )


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    """The file of its own before the entry of the config, as transformers does; of several, the one named default."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    entry = tokenizer_config.get("chat_template")
    if isinstance(entry, list):
        return next((named["template"] for named in entry if named["name"] == "default"), None)
    return entry


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
