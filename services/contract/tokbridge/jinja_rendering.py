"""One rendering of a Jinja chat template in transformers' sandbox, and its faults as typed errors.

Not bounded in time and memory: who renders conversations of others does it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from tokbridge.errors import ChatTemplateError

_TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class RenderingBrokenOffError(ChatTemplateError):
    """A bounded renderer gave no text; this says nothing of what the template takes."""


@dataclass(frozen=True)
class RenderJob:
    """What a template is rendered with; JSON data."""

    source: str
    messages: list[Any]
    tools: list[Any] | None
    add_generation_prompt: bool
    variables: dict[str, Any]
    """Special tokens and the caller's arguments."""


Renderer = Callable[[RenderJob], str]


def render_here(job: RenderJob) -> str:
    """The text of a conversation.

    Raises:
        ChatTemplateError: the template refuses the conversation, its message is passed on; or it fails on it.
    """
    try:
        rendered, _ = render_jinja_template(
            [job.messages],
            tools=job.tools,
            chat_template=job.source,
            add_generation_prompt=job.add_generation_prompt,
            **job.variables,
        )
    except TemplateError as error:
        raise ChatTemplateError(f"the chat template refuses the conversation: {error}") from error
    except _TEMPLATE_FAULTS as error:
        raise ChatTemplateError(f"the chat template fails on the conversation ({type(error).__name__})") from error
    return rendered[0]
