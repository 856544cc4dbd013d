"""A chat template: from a conversation to the text of a prompt (spec §3.1, §3.2).

Both sides need it: the teacher renders its own prompt, the student the prompt of its rollouts. The module knows
nothing of tokens but the texts of the control tokens, which it keeps apart from the same texts in a message.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokbridge.errors import ChatTemplateError, UnsupportedTemplateError
from tokbridge.jinja_rendering import Renderer, RenderingBrokenOffError, RenderJob, render_here
from tokbridge.messages import Message, check_nothing_dropped, guarded, prepare_messages, unused_character
from tokbridge.template_arguments import check_arguments

THINKING_TAGS = ("<think>", "</think>", "<thinking>", "</thinking>", "[THINK]", "[/THINK]")
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Template arguments that turn thinking off when false."""


@dataclass(frozen=True)
class GuardedPrompt:
    """Rendered text in which `guard` stands inside every control-token text that came from the conversation."""

    text: str
    guard: str

    @property
    def plain(self) -> str:
        """The text as the template meant it."""
        return self.text.replace(self.guard, "")


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja chat template with the token texts it may use; rendered in transformers' sandbox."""

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`…, as the template sees them."""
    control_tokens: frozenset[str] = frozenset()
    """Texts of all control tokens."""
    renderer: Renderer = field(default=render_here, repr=False, compare=False)
    """Renders in this process, unless told otherwise."""

    @property
    def hash(self) -> str:
        """SHA-256 of the source, as hex."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Text of the conversation.

        Raises:
            MalformedConversationError: a message is of the wrong form.
            ChatTemplateError: the template refuses the conversation; its message is passed on.
            UnsupportedTemplateError: the template has channels.
            ContentDroppedByTemplateError: the text lacks a message that is not an assistant's.
            InvalidRequestError: `arguments` sets what is not the caller's to set.
        """
        return self.render_guarded(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, arguments=arguments
        ).plain

    def render_guarded(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any] | None = None,
    ) -> GuardedPrompt:
        """As `render`, with control-token texts of the conversation told apart from the template's own."""
        if "<|channel|>" in self.source:
            raise UnsupportedTemplateError("chat templates with channels (gpt-oss) are not supported yet")
        prepared = prepare_messages(messages, self.source, arguments_as_mappings=self._wants_argument_mappings)
        guard = unused_character([prepared, list(tools or ()), dict(arguments or {}), self.source])
        text = self._render(
            guarded(prepared, self._control_pattern, guard),
            guarded(list(tools), self._control_pattern, guard) if tools else None,
            add_generation_prompt,
            arguments or {},
        )
        prompt = GuardedPrompt(text, guard)
        check_nothing_dropped(prepared, prompt.plain)
        return prompt

    def generation_prompt_tail(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """g of spec §3.2: the generation prompt from its first thinking tag after the last control token on, or ""."""
        with_prompt, without = (
            self.render(messages, tools=tools, add_generation_prompt=add, arguments=arguments) for add in (True, False)
        )
        return self.thinking_tail(with_prompt[_shared_length(with_prompt, without) :])

    def thinking_tail(self, generation_prompt: str) -> str:
        """The part of a generation prompt from its first thinking tag after the last control token on, or ""."""
        *_, last = self._control_pattern.split(generation_prompt)
        starts = [start for tag in THINKING_TAGS if (start := last.find(tag)) >= 0]
        return last[min(starts) :] if starts else ""

    def switched_off(self, arguments: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """`arguments` with the template's thinking switch off, or None where it has no switch."""
        switches = [name for name in THINKING_SWITCHES if re.search(rf"\b{name}\b", self.source)]
        return {**(arguments or {}), **dict.fromkeys(switches, False)} if switches else None

    def _render(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any],
    ) -> str:
        check_arguments(arguments, "template_arguments")
        variables = {**self.special_tokens, **arguments}
        return self.renderer(RenderJob(self.source, messages, tools, add_generation_prompt, variables))

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.control_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def _wants_argument_mappings(self) -> bool:
        """Whether tool-call arguments must be mappings: as JSON text they make it fail, or come out quoted twice.

        Raises:
            RenderingBrokenOffError: there is no answer now; the next conversation asks again.
        """
        key = "probe_key"
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": json.dumps({key: 1})}}
        assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            text = self._render([{"role": "user", "content": "u"}, assistant], None, False, {})
        except RenderingBrokenOffError:
            raise
        except ChatTemplateError:
            return True
        return f'\\"{key}' in text


def _shared_length(a: str, b: str) -> int:
    """Length of the longest common prefix."""
    shared = min(len(a), len(b))
    return next((i for i in range(shared) if a[i] != b[i]), shared)
