"""The pooler that runs in every vLLM worker after each forward pass: LM head and device pass, chunk by chunk.

All ranks of a tensor-parallel group call the LM head together, in chunks that follow from the requests alone; the first
of them reduces. It knows positions and hidden states; which responses they belong to is `ResponseState`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from weakref import WeakKeyDictionary

import torch
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.pooler import Pooler
from vllm.v1.pool.metadata import PoolingMetadata, PoolingStates

from tokbridge.errors import InternalError
from tokbridge_teacher.backends.row_chunks import HiddenPiece, chunks_of_rows
from tokbridge_teacher.backends.vllm.largest_pass import largest_slice, largest_tables
from tokbridge_teacher.backends.vllm.response_state import ResponseState
from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions
from tokbridge_teacher.backends.vllm.worker_request import WorkerRequest
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.targets.marginal import marginalize

TASK = "token_classify"
"""The only task of the pooler; vLLM knows no other of one output a token that it lets a model define."""


class TargetPooler(Pooler):
    """Hidden states in, sparse answers out, one tensor of bytes a response."""

    def __init__(self, compute_logits: Callable[[torch.Tensor], torch.Tensor | None], config: VllmConfig) -> None:
        super().__init__()
        self._compute_logits = compute_logits
        self._options = WorkerOptions.from_config(config.additional_config)
        self._reduces = get_tensor_model_parallel_rank() == 0
        self._states: WeakKeyDictionary[PoolingStates, ResponseState] = WeakKeyDictionary()
        self.tables: dict[str, DeviceTables] = {}
        """By key, as the host sent them."""

    def get_supported_tasks(self) -> Set[str]:
        """What vLLM may ask for."""
        return {TASK}

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata) -> list[torch.Tensor | None]:
        """The answers of the responses whose last token was computed; None for the others.

        Args:
            hidden_states: [tokens of the step, h], the responses one after the other.
            pooling_metadata: vLLM's account of them.
        """
        requests = [WorkerRequest.from_extra(params.extra_kwargs) for params in pooling_metadata.pooling_params]
        cursor = pooling_metadata.get_pooling_cursor()
        if None in requests:
            self._run_largest_pass(hidden_states)
            return [hidden_states.new_empty(0) for _ in requests]
        states = [
            self._state(key, request)
            for key, request in zip(pooling_metadata.pooling_states, requests, strict=True)
            if request is not None
        ]
        ends = zip(cursor.num_scheduled_tokens_cpu.tolist(), cursor.seq_lens_cpu.tolist(), strict=True)
        pieces = _pieces(hidden_states, states, list(ends))
        chunk_rows = min([self._options.chunk_rows, *(states[piece.member].max_chunk_rows for piece in pieces)])
        for chunk in chunks_of_rows(pieces, chunk_rows):
            self._reduce(chunk, states)
        finished = cursor.get_finished_mask()
        return [self._answer(state) if done else None for state, done in zip(states, finished, strict=True)]

    def logits(self, hidden_Ph: torch.Tensor) -> torch.Tensor:
        """The model's own logits [P, V], on every rank."""
        logits_PV = self._compute_logits(hidden_Ph)
        if logits_PV is None:
            raise InternalError("the model gives its logits on one rank only")
        return logits_PV

    def _state(self, key: PoolingStates, request: WorkerRequest) -> ResponseState:
        if key not in self._states:
            self._states[key] = ResponseState(request)
        return self._states[key]

    def _reduce(self, chunk: list[HiddenPiece], states: list[ResponseState]) -> None:
        hidden = [piece.hidden_Ph for piece in chunk]
        logits_PV = self.logits(hidden[0] if len(hidden) == 1 else torch.cat(hidden))
        if not self._reduces:
            return
        for piece, part_PV in zip(chunk, logits_PV.split([len(rows) for rows in hidden]), strict=True):
            states[piece.member].reduce(piece.first_position, part_PV, self.tables)

    def _answer(self, state: ResponseState) -> torch.Tensor:
        return torch.frombuffer(state.answer(), dtype=torch.uint8)

    def _run_largest_pass(self, hidden_states: torch.Tensor) -> None:
        """Take all the memory that a chunk can need, once, while vLLM measures."""
        rows = self._options.chunk_rows
        hidden_Ph = hidden_states[torch.arange(rows, device=hidden_states.device) % len(hidden_states)]
        logits_PV = self.logits(hidden_Ph).zero_()
        if self._reduces:
            head_size = logits_PV.shape[1]
            arrays = largest_tables(head_size, self._options.largest_student(head_size))
            tables = DeviceTables(arrays, logits_PV.device)
            marginalize(logits_PV, largest_slice(rows, self._options.max_cells), tables)


def _pieces(
    hidden_states: torch.Tensor, states: list[ResponseState], steps: list[tuple[int, int]]
) -> list[HiddenPiece]:
    """Hidden states of positions to be scored; `steps` are each response's tokens of this step, and of all so far."""
    pieces: list[HiddenPiece] = []
    row = 0
    for member, (state, (count, end)) in enumerate(zip(states, steps, strict=True)):
        row += count
        positions = state.positions(end - count, end)
        if positions:
            pieces.append(HiddenPiece(member, positions.start, hidden_states[row - len(positions) : row]))
    return pieces
