"""The teacher's prompt for one response: its own chat template, and the thinking seam settled (spec §3.1, §3.2).

The module gives token ids; it knows nothing of the response's tokens and of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokbridge.chat_template import ChatTemplate, GuardedPrompt
from tokbridge.errors import ChatTemplateError, UnsupportedTemplateError
from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_teacher.prompt.thinking_seam import Seam, SettledSeam, lacks_opening, settle, settle_switched_off
from tokbridge_teacher.segmentation import ContentTokenizer


@dataclass(frozen=True, eq=False)
class RenderedPrompt:
    """Prompt of one response."""

    token_ids: NDArray[np.int32]
    """[P], at least one."""
    seam: Seam
    given_bytes: int
    """Bytes at the start of the response that the prompt already holds; their rows have no target."""
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Opened:
    """A rendered prompt and its thinking tail g_t."""

    prompt: GuardedPrompt
    tail: str


def render_prompt(
    profile: TokenizerProfile,
    content_tokenizer: ContentTokenizer,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any] | None,
    student_tail: str,
    response: bytes,
) -> RenderedPrompt:
    """Render the conversation for the teacher and settle the seam to the response.

    Args:
        profile: the teacher's tokenizer.
        content_tokenizer: of the same tokenizer; what the seam adds is tokenized on its own.
        student_tail: g_s, the thinking opening at the end of the student's own prompt, or "".
        response: content bytes, only looked at for their opening.

    Raises:
        UnsupportedTemplateError: the teacher has no chat template, or one with channels.
        MalformedConversationError, ChatTemplateError, ContentDroppedByTemplateError: see `ChatTemplate.render`; the
            second also where the prompt has no token.
    """
    template = profile.template
    if template is None:
        raise UnsupportedTemplateError(f"{profile.name} has no chat template; give it a chat_template.jinja")
    opened = _render(template, messages, tools, arguments)
    settled, notes = settle(student_tail, opened.tail, response), ()
    if lacks_opening(student_tail, opened.tail, response):
        opened, settled, notes = _without_thinking(template, messages, tools, arguments, student_tail, opened)
    text = opened.prompt.text if settled.keeps_teacher_tail else opened.prompt.text.removesuffix(opened.tail)
    ids = profile.prompt_tokenizer.encode(replace(opened.prompt, text=text))
    context_ids = content_tokenizer.segment(settled.context.encode()).ids
    token_ids = np.concatenate([ids, context_ids])
    if not len(token_ids):
        raise ChatTemplateError("the chat template writes nothing for the conversation: no token to start from")
    notes += _notes_on_tools(tools or (), opened.prompt.plain)
    return RenderedPrompt(token_ids, settled.seam, settled.given_bytes, notes)


def _render(
    template: ChatTemplate,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any] | None,
) -> _Opened:
    prompt = template.render_guarded(messages, tools=tools, add_generation_prompt=True, arguments=arguments)
    return _Opened(prompt, template.generation_prompt_tail(messages, tools, arguments))


def _without_thinking(
    template: ChatTemplate,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    arguments: Mapping[str, Any] | None,
    student_tail: str,
    opened: _Opened,
) -> tuple[_Opened, SettledSeam, tuple[str, ...]]:
    """Case (iii): the prompt with thinking off where the template can, else with its opening cut."""
    off_arguments = template.switched_off(arguments)
    if off_arguments is not None:
        off = _render(template, messages, tools, off_arguments)
        settled = settle_switched_off(student_tail, off.tail)
        if settled is not None:
            return off, settled, ("the response has no thinking opening: rendered with thinking off",)
    cut = SettledSeam(Seam.CUT, keeps_teacher_tail=False, context=student_tail)
    return opened, cut, ("the response has no thinking opening: the template's own was cut",)


def _notes_on_tools(tools: Sequence[Mapping[str, Any]], prompt: str) -> tuple[str, ...]:
    """Whether tools are missing from the prompt: many templates have no place for any, and their teacher then judges
    calls of what it has not seen.
    """
    functions = [tool.get("function", tool) for tool in tools]
    names = [str(function.get("name", "")) if isinstance(function, Mapping) else "" for function in functions]
    missing = sum(name not in prompt for name in names)
    return (f"the template writes nothing of {missing} of {len(tools)} tools",) if missing else ()
