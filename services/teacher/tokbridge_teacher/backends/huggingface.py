"""Embedded backend on transformers: batches of responses through the model, targets by chunks of rows.

Memory is bounded by three settings: tokens of a batch (cache), tokens of one forward pass (activations), rows of one
call of the LM head (logits). A prompt that several responses share is computed once. Runs on a CPU or on one GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from tokbridge.errors import InternalError, NonFiniteLogitsError
from tokbridge_teacher.backends.base import BackendDescription, ScoreJob, SelfTestReport, Steps, run_to_end
from tokbridge_teacher.backends.batching import MicroBatch, PrefixGroup, group_responses
from tokbridge_teacher.backends.device_faults import fault_of_device
from tokbridge_teacher.backends.hidden_states import HiddenStates
from tokbridge_teacher.backends.lm_head import LmHead
from tokbridge_teacher.backends.row_chunks import HiddenPiece, chunks_of_rows
from tokbridge_teacher.backends.self_test import run_self_test
from tokbridge_teacher.targets.marginal import marginalize

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackendLimits:
    """What bounds the memory of a pass."""

    chunk_rows: int = 256
    """Rows of one call of the LM head."""
    piece_tokens: int = 2048
    """Tokens of one forward pass, padding included."""
    batch_tokens: int = 8192
    """Tokens whose keys and values are held at once; one response may need more."""


class HuggingFaceBackend:
    """Scores responses with a transformers model; see `Backend` for the contract."""

    def __init__(self, model: PreTrainedModel, *, name: str, context_length: int, limits: BackendLimits) -> None:
        self._model = model
        self._name = name
        self._context_length = context_length
        self._limits = limits
        self._head = LmHead(model)
        self._hidden_states = HiddenStates(model, limits.piece_tokens)
        self._share_prompts = True
        self._batch = True

    def describe(self) -> BackendDescription:
        """Facts about the model."""
        return BackendDescription(
            backend="huggingface",
            model=self._name,
            head_size=self._head.size,
            context_length=self._context_length,
            dtype=str(self._model.dtype).removeprefix("torch."),
            device=str(self._model.device),
        )

    @torch.inference_mode()
    def self_test(self) -> SelfTestReport:
        """Compare the head and every faster path with the model's own log-probs; slower paths replace what differs."""
        report = run_self_test(self._model, self._head, self._context_length)
        self._share_prompts = "shared_prompt" not in report.disabled_paths
        self._batch = "padded_batch" not in report.disabled_paths
        if "pieces" in report.disabled_paths:
            self._hidden_states = HiddenStates(self._model, None)
        return report

    @torch.inference_mode()
    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        """Score every job that somebody still waits for; a step is at most one call of the LM head and one
        forward pass.
        """
        fault: InternalError | None = None
        try:
            yield from self._steps(jobs)
        except RuntimeError as error:
            fault = fault_of_device(error, self._model.device)
            if fault is None:
                raise
            _log.exception("a pass of %d responses failed on the device", len(jobs))
        if fault is not None:
            raise fault  # out here, so that it does not hold the frames of the pass, and with them its tensors

    def _steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        live = [job for job in jobs if not job.cancelled()]
        groups = group_responses(
            [job.prompt_ids for job in live],
            [job.plan.teacher_ids for job in live],
            batch_tokens=self._limits.batch_tokens,
            share_prompts=self._share_prompts,
            batch=self._batch,
        )
        for group in groups:
            yield from self._group_steps(group, live)

    def score(self, jobs: Sequence[ScoreJob]) -> None:
        """All steps at once."""
        run_to_end(self.steps(jobs))

    def close(self) -> None:
        """Nothing to end: the model lives in this process."""

    def _group_steps(self, group: PrefixGroup, jobs: Sequence[ScoreJob]) -> Steps:
        members = [jobs[index] for batch in group.batches for index in batch.members]
        cache = yield from self._hidden_states.prefix(group.prefix_ids, lambda: _any_waiting(members))
        if cache is None and len(group.prefix_ids) > 0:
            return
        for batch in group.batches:
            waiting = [jobs[index] for index in batch.members]
            pieces = self._hidden_states.run(
                batch, cache, len(group.prefix_ids), lambda waiting=waiting: _any_waiting(waiting)
            )
            failed: set[int] = set()
            for piece in pieces:
                yield from self._piece_steps(piece, jobs, failed)
            _finish(batch, jobs, failed, len(group.prefix_ids))

    def _piece_steps(self, piece: list[HiddenPiece], jobs: Sequence[ScoreJob], failed: set[int]) -> Steps:
        """LM head over the rows of several responses together, then each response's share of every chunk.

        The logits live in a buffer that other steps overwrite: they are used up within a step.
        """

        def wanted(part: HiddenPiece) -> bool:
            return part.member not in failed and not jobs[part.member].cancelled()

        parts = [part for part in piece if wanted(part)]
        chunk_rows = min([self._limits.chunk_rows, *(jobs[part.member].max_chunk_rows for part in parts)])
        for chunk in chunks_of_rows(parts, chunk_rows):
            yield  # before a chunk, not after: the last one ends its responses without waiting for another turn
            if not any(map(wanted, chunk)):
                continue
            logits_PV = self._head(torch.cat([part.hidden_Ph for part in chunk]))
            start = 0
            for part in chunk:
                rows = part.hidden_Ph.shape[0]
                if wanted(part):
                    self._emit(part, logits_PV[start : start + rows], jobs, failed)
                start += rows

    def _emit(self, part: HiddenPiece, logits_PV: torch.Tensor, jobs: Sequence[ScoreJob], failed: set[int]) -> None:
        job = jobs[part.member]
        plan_slice = job.plan.slice(part.first_position, part.first_position + logits_PV.shape[0])
        try:
            job.emit(marginalize(logits_PV, plan_slice, job.tables))
        except NonFiniteLogitsError as error:
            failed.add(part.member)
            job.fail(error)


def _any_waiting(jobs: Sequence[ScoreJob]) -> bool:
    return not all(job.cancelled() for job in jobs)


def _finish(batch: MicroBatch, jobs: Sequence[ScoreJob], failed: set[int], shared_tokens: int) -> None:
    for index in batch.members:
        if index not in failed and not jobs[index].cancelled():
            jobs[index].finish(shared_tokens)
