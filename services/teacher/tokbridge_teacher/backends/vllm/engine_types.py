"""What the backend needs of an engine, and what can go wrong with one. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class EngineFacts:
    """What an engine knows once its model is loaded."""

    context_length: int
    dtype: str
    device: str


class EngineStoppedError(Exception):
    """The engine's processes have ended; nothing more comes from it."""


class ResponseRefusedError(Exception):
    """The engine does not compute this response; it goes on with the others."""


class TeacherEngine(Protocol):
    """A running engine with the teacher in it; safe to be used from several threads."""

    @property
    def facts(self) -> EngineFacts:
        """Facts about the model."""
        ...

    @property
    def alive(self) -> bool:
        """Whether its processes still run."""
        ...

    def submit(
        self, token_ids: NDArray[np.integer], extra: Mapping[str, Any], *, read_cache: bool
    ) -> Future[memoryview]:
        """Compute one response together with whatever else is there; cancelling the future takes it out.

        Args:
            token_ids: prompt and content.
            extra: a `WorkerRequest`.
            read_cache: whether tokens at the start may come from the prefix cache; their rows are then missing.

        Returns:
            The bytes of a `WorkerAnswer`. The future raises `EngineStoppedError` or `ResponseRefusedError`.
        """
        ...

    def call_workers(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of `TeacherWorker` in every worker, between two forward passes: what each returns.

        Raises:
            EngineStoppedError: there are none any more.
        """
        ...

    def close(self) -> None:
        """End the processes, if they have not ended."""
        ...
