"""One response inside a worker: which of its rows a step brings, and what was computed of them.

Positions are absolute, so a step that comes again after a preemption, or starts late after a hit in the prefix cache,
is neither counted twice nor taken for another. Knows tensors and plans; nothing of vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property

import torch

from tokbridge.errors import NonFiniteLogitsError
from tokbridge_teacher.backends.vllm.answer_codec import AnswerStatus, AnswerWriter
from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.targets.device_plan import DevicePlan
from tokbridge_teacher.targets.marginal import marginalize

_log = logging.getLogger(__name__)


class ResponseState:
    """Progress of one response; lives as long as vLLM keeps the request in the worker."""

    def __init__(self, request: WorkerRequest) -> None:
        self._request = request
        self._answer = AnswerWriter()
        self._started = False
        self._next_position = 0

    @property
    def max_chunk_rows(self) -> int:
        """Rows of a chunk that this response may be part of."""
        return self._request.max_chunk_rows

    @cached_property
    def _plan(self) -> DevicePlan:
        return self._request.plan()

    def positions(self, start: int, stop: int) -> range:
        """Plan positions that tokens `start` … `stop − 1` bring, computed in this step: the last ones of them, empty
        where all belong to the prompt or came before.
        """
        if not self._started:
            self._started = True
            self._answer.cached_tokens = start
        first = max(self._next_position, start - self._request.first_row)
        last = stop - self._request.first_row
        self._next_position = max(self._next_position, last)
        return range(first, max(first, last))

    def reduce(self, first_position: int, logits_PV: torch.Tensor, tables: Mapping[str, DeviceTables]) -> None:
        """Take the logits of consecutive positions; they may be overwritten."""
        if self._answer.failed:
            return
        if self._request.tables_key not in tables:
            self._answer.fail(AnswerStatus.UNKNOWN_TABLES)
            return
        try:
            plan_slice = self._plan.slice(first_position, first_position + logits_PV.shape[0])
            self._answer.add(marginalize(logits_PV, plan_slice, tables[self._request.tables_key]))
        except NonFiniteLogitsError as error:
            self._answer.fail(AnswerStatus.NON_FINITE, int(error.details["position"]))
        except Exception:  # noqa: BLE001 - raised in a worker, it would end the engine for every response
            _log.exception("the device pass of one response failed")
            self._answer.fail(AnswerStatus.FAILED)

    def answer(self) -> bytearray:
        """All that was computed, once the last token is."""
        return self._answer.finished()
