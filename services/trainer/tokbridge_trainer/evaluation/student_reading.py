"""Reads responses with the student: what it says of each token, without learning from it.

Axes: N response tokens, the stop token included, V student tokens, R rows of several responses, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from tokbridge_trainer.evaluation.agreement import student_top_symbols
from tokbridge_trainer.head import apply_form, lm_head
from tokbridge_trainer.micro_batches import rank_micro_batches
from tokbridge_trainer.packed_attention import hidden_states
from tokbridge_trainer.packing import emitted_ids, hidden_index, lay_out, sequence_ids
from tokbridge_trainer.ranks import ONE_RANK, Ranks
from tokbridge_trainer.samples import Sample
from tokbridge_trainer.student_module import Forward, StudentModule, ask

_CHUNK_ROWS = 256


@dataclass(frozen=True)
class StudentReading:
    """One response, token by token."""

    log_probs: NDArray[np.float32]
    """[N], of the tokens that stand there, at temperature 1."""
    top_symbols: NDArray[np.int64]
    """[N], likeliest next symbol (`agreement`)."""


class StudentReader:
    """Reads with one model, which is left in the mode it was in."""

    def __init__(
        self, student: StudentModule, forward: Forward, symbols_V: NDArray[np.int64], ranks: Ranks = ONE_RANK
    ) -> None:
        self._student = student
        self._forward = forward
        self._symbols_V = torch.from_numpy(symbols_V).to(lm_head(student.model).weight.device)
        self._ranks = ranks

    def read(self, samples: Sequence[Sample], micro_batch_tokens: int) -> list[StudentReading]:
        """One reading for each sample, in their order, on every rank; each rank reads some of them."""
        was_training = self._student.training
        self._student.eval()
        readings: dict[int, StudentReading] = {}
        for indices in rank_micro_batches(
            [sample.num_tokens for sample in samples],
            micro_batch_tokens,
            rank=self._ranks.rank,
            ranks=self._ranks.size,
            packed=self._forward.packed,
        ):
            read = self._read_batch([samples[i] for i in indices])
            readings |= zip(indices, read, strict=True)
        self._student.train(was_training)
        for theirs in self._ranks.all_gather(readings):
            readings |= theirs
        return [readings[i] for i in range(len(samples))]

    def _read_batch(self, samples: Sequence[Sample]) -> list[StudentReading]:
        lengths = [sample.num_response_tokens for sample in samples]
        log_probs_R, symbols_R = ask(self._student, partial(self._read_rows, samples))
        ends = np.cumsum(lengths)[:-1]
        parts = zip(np.split(log_probs_R, ends), np.split(symbols_R, ends), strict=True)
        return [StudentReading(log_probs, symbols) for log_probs, symbols in parts][: len(samples)]

    def _read_rows(
        self, samples: Sequence[Sample], model: PreTrainedModel
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        device = self._symbols_V.device
        lengths = torch.tensor([sample.num_response_tokens for sample in samples], dtype=torch.int64)
        response_R = torch.repeat_interleave(torch.arange(len(samples)), lengths)
        row_R = torch.cat([torch.empty(0, dtype=torch.int64), *map(torch.arange, lengths.tolist())])
        tokens = lay_out([sequence_ids(s) for s in samples], packed=self._forward.packed, device=device)
        index_R = hidden_index(tokens, samples, response_R, row_R).to(device)
        hidden_RH = hidden_states(model, tokens, self._forward.dtype)[index_R]
        head, emitted_R = lm_head(model), emitted_ids(samples, response_R, row_R)
        log_probs, symbols = [], []
        pairs = zip(hidden_RH.split(_CHUNK_ROWS), emitted_R.split(_CHUNK_ROWS), strict=True)
        for hidden_CH, emitted_C in pairs:
            logits_CV = apply_form(head(hidden_CH.to(head.weight.dtype)), self._forward.form).float()
            log_probs_CV = logits_CV.log_softmax(-1)
            log_probs.append(log_probs_CV.gather(1, emitted_C.to(device)[:, None])[:, 0].cpu())
            symbols.append(student_top_symbols(log_probs_CV, self._symbols_V).cpu())
        return torch.cat(log_probs).numpy(), torch.cat(symbols).numpy()
