"""Renderings that are needed again: the samples of one prompt all want the same text. Knows no template."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from tokbridge.jinja_rendering import Renderer, RenderJob
from tokbridge_teacher.routing.bounded_cache import BoundedCache

MAX_CHARACTERS = 8 << 20
"""Of all texts that are kept."""
_CLOCK = "strftime_now"
"""What a template calls that wants to know the time: its text is another one tomorrow."""


class RenderedTexts:
    """A `Renderer` that asks another one only for what it has not seen lately; safe from several threads."""

    def __init__(self, renderer: Renderer, max_characters: int = MAX_CHARACTERS) -> None:
        self._renderer = renderer
        self._texts: BoundedCache[bytes, str] = BoundedCache(max_characters, lambda text: len(text) + 64)

    def __call__(self, job: RenderJob) -> str:
        """The text of a conversation; errors as the renderer's, and they are not kept."""
        if _CLOCK in job.source:
            return self._renderer(job)
        key = hashlib.sha256(json.dumps(asdict(job)).encode()).digest()
        return self._texts.get_or_build(key, lambda: self._renderer(job))
