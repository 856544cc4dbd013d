"""From rendered text to the token ids of a prompt.

Control tokens that the template wrote become their ids; the same text inside a message stays text. Everything between
two control tokens is encoded as the tokenizer's own file says, normalizers included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tokbridge.chat_template import GuardedPrompt
from tokbridge.encoders import prompt_encoder
from tokbridge.token_bytes import parse_tokenizer_json


class PromptTokenizer:
    """Tokenizes rendered prompts of one tokenizer; safe to share among threads."""

    def __init__(self, tokenizer_json: str, control_ids: Mapping[str, int]) -> None:
        spec = parse_tokenizer_json(tokenizer_json)
        added = spec.get("added_tokens") or ()
        self._control_ids = dict(control_ids)
        self._encoder = prompt_encoder(spec, set(control_ids.values()))
        self._strips_left = {token["content"] for token in added if token["lstrip"]}
        self._strips_right = {token["content"] for token in added if token["rstrip"]}
        longest_first = sorted(control_ids, key=len, reverse=True)
        self._pattern = re.compile("(" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    def encode(self, prompt: GuardedPrompt) -> NDArray[np.int32]:
        """[P], ids of the prompt; nothing is added in front or behind."""
        ids = [i for piece in self._pieces(prompt) for i in piece]
        return np.array(ids, np.int32)

    def _pieces(self, prompt: GuardedPrompt) -> Iterator[list[int]]:
        """Ids of texts and control tokens in turn, as `re.split` gives them: texts at even places."""
        parts = self._pattern.split(prompt.text)
        for place, part in enumerate(parts):
            if place % 2:
                yield [self._control_ids[part]]
                continue
            if place and parts[place - 1] in self._strips_right:
                part = part.lstrip()
            if place + 1 < len(parts) and parts[place + 1] in self._strips_left:
                part = part.rstrip()
            if part:
                yield self._encoder.encode(part.replace(prompt.guard, ""), add_special_tokens=False).ids
