"""Stands in for a vLLM engine with one worker: cuts responses into steps, reads a cache, preempts, all by chance.

The logits of a position are given, whatever the tokens; the rest is what a real worker does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from tokbridge_teacher.backends.vllm.engine_types import EngineFacts, EngineStoppedError
from tokbridge_teacher.backends.vllm.plan_codec import decode_tables
from tokbridge_teacher.backends.vllm.response_state import ResponseState
from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest
from tokbridge_teacher.routing.device_tables import DeviceTables

BLOCK = 4


class StepwiseEngine:
    """Answers at once; `log` holds the tokens and the cache setting of every request."""

    def __init__(self, logits_PV: torch.Tensor, rng: np.random.Generator, *, forgets_tables: int = 0) -> None:
        self._logits_PV = logits_PV
        self._rng = rng
        self._forgets_tables = forgets_tables
        self.tables: dict[str, DeviceTables] = {}
        self.log: list[tuple[int, bool]] = []

        self.calls: list[str] = []
        self.alive = True

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(4096, "float32", "cpu")

    def call_workers(self, method: str, *arguments: Any) -> list[Any]:
        """Put or drop tables, as a worker does."""
        if not self.alive:
            raise EngineStoppedError
        self.calls.append(method)
        if method == "tokbridge_drop_tables":
            for key in arguments[0]:
                del self.tables[key]
            return [None]
        assert method == "tokbridge_put_tables"
        self._forgets_tables -= 1
        if self._forgets_tables < 0:
            key, data = arguments
            self.tables[key] = DeviceTables(decode_tables(data), "cpu")
        return [None]

    def close(self) -> None:
        """It has ended."""
        self.alive = False

    def submit(self, token_ids: np.ndarray, extra: Mapping[str, Any], *, read_cache: bool) -> Future[memoryview]:
        """Compute a response step by step."""
        self.log.append((len(token_ids), read_cache))
        request = WorkerRequest.from_extra(extra)
        assert request is not None
        state, done = ResponseState(request), self._hit(len(token_ids), read_cache)
        while done < len(token_ids):
            stop = min(done + int(self._rng.integers(1, 9)), len(token_ids))
            self._step(state, done, stop)
            done = stop
            if done < len(token_ids) and self._rng.random() < 0.15:
                done = self._hit(len(token_ids), read_cache)
                state = state if self._rng.random() < 0.5 else ResponseState(request)
        future: Future[memoryview] = Future()
        future.set_result(memoryview(state.answer()))
        return future

    def _hit(self, num_tokens: int, read_cache: bool) -> int:
        return BLOCK * int(self._rng.integers(0, (num_tokens - 1) // BLOCK + 1)) if read_cache else 0

    def _step(self, state: ResponseState, start: int, stop: int) -> None:
        positions = state.positions(start, stop)
        while positions:
            part = positions[: int(self._rng.integers(1, 4))]
            state.reduce(part.start, self._logits_PV[part.start : part.stop].clone(), self.tables)
            positions = positions[len(part) :]
