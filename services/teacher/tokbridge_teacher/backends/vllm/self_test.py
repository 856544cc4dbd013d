"""Checks an engine against itself before it may serve.

The device pass must give the log-probs of the model's own logits. Responses scored together must come out as alone; so
must responses whose prompt is in the prefix cache, else the cache is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import SelfTestFailedError, TokbridgeError
from tokbridge_teacher.backends.base import SelfTestReport
from tokbridge_teacher.backends.vllm.engine_types import TeacherEngine
from tokbridge_teacher.backends.vllm.largest_pass import plain_plan
from tokbridge_teacher.backends.vllm.response_run import ResponseRun

PREFIX_CACHE = "prefix_cache"
_BATCH = "batch"
_SEED = 20260722
_PROMPT_TOKENS = 260
"""More than a block of any cache."""
_CONTENT_TOKENS = (33, 7, 18)
_LOW_IDS = 1000
TOLERANCES = {"float32": 2e-3, "float16": 0.1, "bfloat16": 0.5}
"""Largest tolerated difference of a log-prob, in nats, by dtype: rounding of activations."""

SendTables = Callable[[int], str]
"""Sends the tables of a pair that has this many ids on either side, and gives their key."""


def check_engine(engine: TeacherEngine, dtype: str, send_tables: SendTables) -> tuple[int, SelfTestReport]:
    """Rows of the LM head, and what was measured.

    Raises:
        SelfTestFailedError: the device pass or a batch does not give the model's own log-probs.
    """
    tolerance = TOLERANCES[dtype]
    head_size, head_error = engine.call_workers("tokbridge_check_head")[0]
    _require(head_error, tolerance, "the device pass", "the model's own log-probs")
    probe = _Probe(engine, head_size, send_tables(head_size))
    alone = [log_probs for number in range(len(_CONTENT_TOKENS)) for log_probs in probe.log_probs([number])]
    everything = range(len(_CONTENT_TOKENS))
    errors = {_BATCH: _difference(alone, probe.log_probs(everything))}
    _require(errors[_BATCH], tolerance, "a batch", "scoring alone")
    errors[PREFIX_CACHE] = _difference(alone, probe.log_probs(everything, read_cache=True))
    disabled = () if errors[PREFIX_CACHE] <= tolerance else (PREFIX_CACHE,)
    return head_size, SelfTestReport(head_error=head_error, path_errors=errors, disabled_paths=disabled)


class _Probe:
    """Random responses to one random prompt."""

    def __init__(self, engine: TeacherEngine, head_size: int, tables_key: str) -> None:
        generator = np.random.default_rng(_SEED)
        high = min(_LOW_IDS, head_size)  # low ids are real tokens in every vocabulary
        room = engine.facts.context_length - max(_CONTENT_TOKENS)
        self._prompt = generator.integers(0, high, min(_PROMPT_TOKENS, room))
        self._contents = [generator.integers(0, high, length) for length in _CONTENT_TOKENS]
        self._engine = engine
        self._tables_key = tables_key

    def log_probs(self, numbers: Sequence[int], *, read_cache: bool = False) -> list[NDArray[np.float64]]:
        """Log-probs of the content tokens of some responses, all in the engine at once."""
        runs = [self._run(self._contents[number], read_cache) for number in numbers]
        return [_realized(run) for run in runs]

    def _run(self, content: NDArray[np.int64], read_cache: bool) -> ResponseRun:
        plan = plain_plan(content, 1)
        return ResponseRun(self._engine, self._prompt, plan, self._tables_key, _never, read_cache=read_cache)


def _realized(run: ResponseRun) -> NDArray[np.float64]:
    while (outcome := run.take()) is None:
        wait([run.future])
    if isinstance(outcome, TokbridgeError):
        raise outcome
    return np.concatenate([chunk.realized_log_probs for chunk in outcome.chunks])


def _never() -> None:
    raise SelfTestFailedError("A worker lost the tables of the self-test.")


def _require(error: float, tolerance: float, what: str, reference: str) -> None:
    if not error <= tolerance:
        raise SelfTestFailedError(
            f"{what} differs from {reference} by {error:.3g} nats (tolerance {tolerance}).", error=error
        )


def _difference(left: Sequence[NDArray[np.float64]], right: Sequence[NDArray[np.float64]]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(left, right, strict=True))
