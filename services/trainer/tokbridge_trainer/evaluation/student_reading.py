"""Reads responses with the student: what it says of each token, without learning from it.

Axes: N response tokens, the stop token included, V student tokens, R rows of several responses, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from tokbridge_trainer.evaluation.agreement import student_top_symbols
from tokbridge_trainer.head import HeadForm, apply_form, decoder_of, find_head_form, lm_head
from tokbridge_trainer.micro_batches import plan_micro_batches
from tokbridge_trainer.packing import response_ids
from tokbridge_trainer.samples import Sample

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

    def __init__(self, model: PreTrainedModel, symbols_V: NDArray[np.int64], dtype: torch.dtype) -> None:
        self._model = model
        self._form: HeadForm = find_head_form(model)
        self._symbols_V = torch.from_numpy(symbols_V).to(lm_head(model).weight.device)
        self._dtype = dtype

    @torch.no_grad()
    def read(self, samples: Sequence[Sample], micro_batch_tokens: int) -> list[StudentReading]:
        """One reading for each sample, in their order."""
        was_training = self._model.training
        self._model.eval()
        readings: dict[int, StudentReading] = {}
        for indices in plan_micro_batches([sample.num_tokens for sample in samples], micro_batch_tokens):
            readings |= zip(indices, self._read_batch([samples[i] for i in indices]), strict=True)
        self._model.train(was_training)
        return [readings[i] for i in range(len(samples))]

    def _read_batch(self, samples: Sequence[Sample]) -> Iterator[StudentReading]:
        emitted = [response_ids(sample) for sample in samples]
        hidden_RH = self._hidden_states(samples, [len(ids) for ids in emitted])
        log_probs_R, symbols_R = self._read_rows(hidden_RH, torch.from_numpy(np.concatenate(emitted)))
        ends = np.cumsum([len(ids) for ids in emitted])[:-1]
        for log_probs, symbols in zip(np.split(log_probs_R, ends), np.split(symbols_R, ends), strict=True):
            yield StudentReading(log_probs, symbols)

    def _hidden_states(self, samples: Sequence[Sample], counts: Sequence[int]) -> Tensor:
        """[R, H], the state before each response token: that of the token in front of it."""
        device = self._symbols_V.device
        longest = max(sample.num_tokens for sample in samples)
        ids_BL = torch.zeros((len(samples), longest), dtype=torch.int64)
        for b, sample in enumerate(samples):
            ids = np.concatenate([sample.prompt.token_ids, sample.token_ids]).astype(np.int64)
            ids_BL[b, : len(ids)] = torch.from_numpy(ids)
        # Causal attention and padding on the right: no real token sees padding, so no mask is needed.
        with torch.autocast(device.type, dtype=self._dtype, enabled=self._dtype != torch.float32):
            hidden_BLH = decoder_of(self._model)(input_ids=ids_BL.to(device), use_cache=False).last_hidden_state
        starts = [len(sample.prompt.token_ids) - 1 for sample in samples]
        parts = zip(hidden_BLH, starts, counts, strict=True)
        return torch.cat([hidden_LH[start : start + count] for hidden_LH, start, count in parts])

    def _read_rows(self, hidden_RH: Tensor, emitted_R: Tensor) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        head = lm_head(self._model)
        log_probs, symbols = [], []
        pairs = zip(hidden_RH.split(_CHUNK_ROWS), emitted_R.split(_CHUNK_ROWS), strict=True)
        for hidden_CH, emitted_C in pairs:
            logits_CV = apply_form(head(hidden_CH.to(head.weight.dtype)), self._form).float()
            log_probs_CV = logits_CV.log_softmax(-1)
            log_probs.append(log_probs_CV.gather(1, emitted_C.to(hidden_CH.device)[:, None])[:, 0].cpu())
            symbols.append(student_top_symbols(log_probs_CV, self._symbols_V).cpu())
        return torch.cat(log_probs).numpy(), torch.cat(symbols).numpy()
