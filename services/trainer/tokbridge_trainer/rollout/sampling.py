"""How the next token is drawn: explicit, and reproducible for each sample by itself.

Each sample owns a stream of uniform numbers seeded by (seed, step, prompt, sample), so what it draws does not depend on
the batch or the worker it lands in. The processors below run inside transformers' `generate`, which then only takes the
argmax; nothing is left to its defaults.

Axes: B samples of a batch, V rows of the LM head, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config_sections import SamplingConfig
from tokbridge_trainer.samples import SampleKey


def uniforms_for(seed: int, keys: Sequence[SampleKey], num_tokens: int) -> NDArray[np.float64]:
    """[B, T] numbers in [0, 1): row i is the stream of sample `keys[i]`."""
    return np.stack([np.random.default_rng([seed, *key]).random(num_tokens) for key in keys])


def forbidden_tokens(vocabulary: ByteVocabulary, stop_ids: frozenset[int]) -> NDArray[np.bool_]:
    """[V]: byteless ids that do not end a turn, padded head rows included (spec §2)."""
    forbidden = np.asarray(vocabulary.lengths) < 0
    forbidden[sorted(stop_ids)] = False
    return forbidden


def sampling_processors(
    sampling: SamplingConfig, forbidden_V: torch.Tensor, uniforms_BT: torch.Tensor, prompt_length: int
) -> LogitsProcessorList:
    """Mask, temperature, top-k, top-p, min-p, then the draw. Temperature 0 draws the most likely token."""
    processors: list[LogitsProcessor] = [MaskTokens(forbidden_V)]
    if sampling.temperature == 0.0:
        return LogitsProcessorList(processors)
    if sampling.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    return LogitsProcessorList([*processors, InverseCdfSampler(uniforms_BT, prompt_length)])


class MaskTokens(LogitsProcessor):
    """Gives forbidden tokens the probability zero."""

    def __init__(self, forbidden_V: torch.Tensor) -> None:
        self._forbidden_V = forbidden_V

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[B, V] scores with −inf where forbidden."""
        return scores.masked_fill(self._forbidden_V, float("-inf"))


class InverseCdfSampler(LogitsProcessor):
    """Draws from softmax(scores) with one given uniform number for each sample and token.

    The scores it returns are 0 for the drawn token and −inf elsewhere.
    """

    def __init__(self, uniforms_BT: torch.Tensor, prompt_length: int) -> None:
        self._uniforms_BT = uniforms_BT
        self._prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """[B, V] scores that leave the drawn token only."""
        column = self._uniforms_BT[:, input_ids.shape[1] - self._prompt_length, None]
        cumulative_BV = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        # Scaled by the last sum: a uniform near 1 must not fall past the last token.
        drawn_B = torch.searchsorted(cumulative_BV, column * cumulative_BV[:, -1:], right=True)
        last_possible_B = _last_finite(scores)
        drawn_B = torch.minimum(drawn_B, last_possible_B)
        return torch.full_like(scores, float("-inf")).scatter_(1, drawn_B, 0.0)


def _last_finite(scores_BV: torch.Tensor) -> torch.Tensor:
    """[B, 1] the highest id with a probability above zero, against rounding at the end of the cumulative sum."""
    possible = torch.isfinite(scores_BV)
    return scores_BV.shape[-1] - 1 - possible.flip(-1).int().argmax(dim=-1, keepdim=True)
