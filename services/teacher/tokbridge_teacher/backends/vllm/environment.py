"""What vLLM reads from the environment when it is imported; its processes inherit it. An operator's own values stay."""

from __future__ import annotations

import os

_DEFAULTS = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output carries the ready line
    "VLLM_NO_USAGE_STATS": "1",  # a service tells nobody of itself
}


def prepare_environment() -> None:
    """Set defaults; to be called before vLLM is imported."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
