"""What a trainer needs of its student's tokenizer: prompt ids, the ids that end or must not enter a response, and the
request that has a response scored.

For those who bring their own trainer as for the one of this project. Works on files alone: no torch, no model, no
connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokbridge.chat_template import ChatTemplate
from tokbridge.conversation import ChatMessage
from tokbridge.errors import UnsupportedTemplateError
from tokbridge.modes import Routing, Spanning
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest, split_at_stop
from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class StudentTokenizer:
    """A student's tokenizer and how its chat template is used."""

    profile: TokenizerProfile
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Extra arguments of the student's chat template; the teacher's own template gets those of the request."""
    generation_prompt_tail: str | None = None
    """g_s, where it is known better than the template tells (spec §3)."""

    @classmethod
    def load(cls, source: str | Path, *, head_size: int | None = None, **template_arguments: Any) -> Self:
        """From a folder, a GGUF file or a hub id.

        Args:
            source: as `load_tokenizer` takes it.
            head_size: rows of the student's LM head; left out: as its `config.json` says.
            template_arguments: such as `enable_thinking=False`.

        Raises:
            InvalidVocabularyError: it cannot be read as a byte vocabulary, or declares no token that ends a turn.
        """
        return cls(load_tokenizer(source, head_size), template_arguments)

    @cached_property
    def registration(self) -> StudentRegistration:
        """What `TeacherClient.connect` takes."""
        return StudentRegistration.from_profile(self.profile)

    @cached_property
    def stop_ids(self) -> list[int]:
        """Ids that end a turn: `eos_token_id` of a generation."""
        return sorted(self.profile.stop_ids)

    @cached_property
    def forbidden_ids(self) -> list[int]:
        """Ids without bytes that end no turn, padded head rows included: `suppress_tokens` of a generation. A response
        that holds one all the same is scored; that row has no target and is counted as `control`.
        """
        byteless = np.flatnonzero(self.profile.vocabulary.lengths < 0)
        return np.setdiff1d(byteless, self.stop_ids).tolist()

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: Tools | None = None) -> NDArray[np.int32]:
        """[P] ids of the conversation with the generation prompt at its end; control-token text in it stays text.

        Raises:
            UnsupportedTemplateError: the student has no chat template.
            TokbridgeError: the template refuses the conversation.
        """
        rendered = self._template.render_guarded(
            [dict(message) for message in messages],
            tools=tools,
            add_generation_prompt=True,
            arguments=self.template_arguments,
        )
        return self.profile.prompt_tokenizer.encode(rendered)

    def tail(self, messages: Sequence[ChatMessage], tools: Tools | None = None) -> str:
        """g_s: the thinking opening at the end of the student's own prompt, or "" (spec §3)."""
        if self.generation_prompt_tail is not None:
            return self.generation_prompt_tail
        plain = [dict(message) for message in messages]
        return self._template.generation_prompt_tail(plain, tools, self.template_arguments)

    def request(
        self,
        messages: Sequence[ChatMessage],
        sampled_ids: ArrayLike,
        *,
        tools: Tools | None = None,
        routing: Routing = Routing.GREEDY,
        spanning: Spanning = Spanning.REALIZED,
        top_k: int = 0,
        mass: float = 0.0,
    ) -> ScoreRequest:
        """Ask for the targets of a response, as ids that the student sampled: those after its prompt.

        What follows the first stop token (padding) is cut off. Its answer has one row for each of the remaining ids,
        the stop token included: `ScoreRequest.num_rows`.

        Args:
            messages: the conversation before the response.
            sampled_ids: [T] integers.
            tools: as given to `prompt_ids`.
            routing: how the teacher's tokens find the student's.
            spanning: how student tokens longer than the teacher's are resolved; `lookahead` needs routing `bpe`.
            top_k: cells kept a row at most; 0: the service's default.
            mass: cells are kept until they cover this; 0: the service's default; 1: no limit.
        """
        token_ids, stop_id = split_at_stop(np.asarray(sampled_ids, np.int64), self.profile.stop_ids)
        return ScoreRequest(
            messages=messages,
            response=self.profile.vocabulary.content_of(token_ids),
            token_ids=token_ids,
            stop_id=stop_id,
            tools=tools or (),
            template_arguments=self.template_arguments,
            student_tail=self.tail(messages, tools),
            routing=routing,
            spanning=spanning,
            top_k=top_k,
            mass=mass,
        )

    @property
    def _template(self) -> ChatTemplate:
        if self.profile.template is None:
            raise UnsupportedTemplateError(f"{self.profile.name} has no chat template")
        return self.profile.template
