"""One response on its way through the engine, seen from the host: asked for, asked for again where rows are missing.

Pure but for the engine it is given; called from one thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InternalError, NonFiniteLogitsError, TokbridgeError
from tokbridge_teacher.backends.vllm.answer_codec import AnswerStatus, WorkerAnswer, decode_answer
from tokbridge_teacher.backends.vllm.coverage import joined, missing_stop, spans_of
from tokbridge_teacher.backends.vllm.engine_types import TeacherEngine
from tokbridge_teacher.backends.vllm.plan_codec import encode_plan
from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest
from tokbridge_teacher.targets.device_plan import DevicePlan
from tokbridge_teacher.targets.marginal import ChunkResult


@dataclass(frozen=True)
class Scored:
    """A response whose every position was computed."""

    chunks: list[ChunkResult]
    shared_prompt_tokens: int
    """Prompt tokens that were read from the prefix cache."""


class ResponseRun:
    """A response until it is scored or has failed.

    Args:
        engine: takes the requests.
        prompt_ids: [L], at least one.
        plan: of the response that follows.
        tables_key: names its tables in the workers.
        send_tables: sends them (again).
        max_chunk_rows: rows of a chunk of logits that it may be part of.
        read_cache: whether a prefix that the engine has computed before may be used.
    """

    def __init__(
        self,
        engine: TeacherEngine,
        prompt_ids: NDArray[np.integer],
        plan: DevicePlan,
        tables_key: str,
        send_tables: Callable[[], None],
        *,
        max_chunk_rows: int = sys.maxsize,
        read_cache: bool = True,
    ) -> None:
        self._engine = engine
        self._token_ids = np.concatenate([prompt_ids, plan.teacher_ids]).astype(np.int64)
        self._request = WorkerRequest(tables_key, len(prompt_ids) - 1, max_chunk_rows, encode_plan(plan))
        self._num_positions = plan.num_positions
        self._send_tables = send_tables
        self._sent_again = False
        self._first: WorkerAnswer | None = None
        self._second_stop = 0
        self._read_cache = read_cache
        self.future = self._submit()

    def cancel(self) -> None:
        """Take it out of the engine."""
        self.future.cancel()

    def take(self) -> Scored | TokbridgeError | None:
        """Look at what `future` brought; None: something else was asked for, wait for `future` again.

        Raises:
            EngineStoppedError: the engine is gone.
        """
        answer = decode_answer(self.future.result())
        if answer.status is AnswerStatus.UNKNOWN_TABLES and not self._sent_again:
            self._sent_again = True
            self._send_tables()
            self.future = self._submit()
            return None
        if answer.status is not AnswerStatus.COMPUTED:
            return _failure(answer)
        return self._complete(answer) if self._first is None else self._join(self._first, answer)

    def _submit(self) -> Future[memoryview]:
        """The whole response, or the part of it whose rows are missing, the latter without the cache."""
        if self._first is None:
            return self._engine.submit(self._token_ids, self._request.to_extra(), read_cache=self._read_cache)
        stop = self._request.first_row + self._second_stop
        return self._engine.submit(self._token_ids[:stop], self._request.to_extra(), read_cache=False)

    def _complete(self, answer: WorkerAnswer) -> Scored | None:
        missing = missing_stop(spans_of(answer.chunks), self._num_positions)
        if missing == 0:
            return Scored(list(answer.chunks), answer.cached_tokens)
        self._first, self._second_stop = answer, missing
        self.future = self._submit()
        return None

    def _join(self, first: WorkerAnswer, second: WorkerAnswer) -> Scored | TokbridgeError:
        chunks = joined(first.chunks, second.chunks, self._second_stop)
        if missing_stop(spans_of(chunks), self._num_positions):
            return InternalError("The engine left out rows of the response.")
        return Scored(chunks, 0)


def _failure(answer: WorkerAnswer) -> TokbridgeError:
    if answer.status is AnswerStatus.NON_FINITE:
        return NonFiniteLogitsError(
            f"the teacher's logits at position {answer.position} are not finite", position=answer.position
        )
    return InternalError("The device pass of this response failed.")
