"""Checks a loaded model against itself before it may serve.

The reference is the model's own forward pass, one sequence at a time, without a cache. The LM head must reproduce its
log-probs; every faster path (pieces through the cache, padded batches, a shared prompt) must reproduce its hidden
states' log-probs, else it is switched off. Models that mix states across tokens in other ways (linear attention, for
instance) may fail a path and still serve. A model whose rotary frequencies depend on the length of its input (longrope)
takes no faster path: those of a piece, or of a batch, may be others than the sequence's own, which sequences as short
as the ones here do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from tokbridge.errors import SelfTestFailedError
from tokbridge_teacher.backends.base import SelfTestReport, run_to_end
from tokbridge_teacher.backends.batching import Ids, group_responses
from tokbridge_teacher.backends.hidden_states import HiddenStates
from tokbridge_teacher.backends.lm_head import LmHead

_SEED = 20260722
_PROMPT_TOKENS = 24
_CONTENT_TOKENS = (33, 7, 18)
_PIECE_TOKENS = 15
# Largest tolerated difference of a log-prob, in nats, by dtype: rounding of activations, not of the head.
_TOLERANCES = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class _Sample:
    """Responses to one prompt, and their log-probs [M + 1, V], each run whole and alone."""

    prompts: list[Ids]
    contents: list[Ids]
    alone: list[torch.Tensor]


def run_self_test(model: PreTrainedModel, head: LmHead, context_length: int) -> SelfTestReport:
    """Measure head and paths.

    Args:
        model: a causal model.
        head: its LM head.
        context_length: tokens of prompt and response that it will be given at most.

    Raises:
        SelfTestFailedError: the head does not give the model's own log-probs.
    """
    tolerance = _TOLERANCES[model.dtype]
    head_error = _head_error(model, head)
    if not head_error <= tolerance:
        raise SelfTestFailedError(
            f"lm_head(hidden) differs from the model's own log-probs by {head_error:.3g} nats (tolerance {tolerance}): "
            "the model changes its logits in a way that is not supported.",
            error=head_error,
        )
    sample = _sample(model, head)
    path_errors = {"pieces": _path_error(model, head, sample, _PIECE_TOKENS, share=False, batch=False)}
    # The other paths run in pieces too, unless pieces are what goes wrong.
    piece_tokens = _PIECE_TOKENS if path_errors["pieces"] <= tolerance else None
    path_errors["padded_batch"] = _path_error(model, head, sample, piece_tokens, share=False, batch=True)
    path_errors["shared_prompt"] = _path_error(model, head, sample, piece_tokens, share=True, batch=True)
    none_holds = depends_on_length(model.config.get_text_config(), context_length)
    disabled = tuple(name for name, error in path_errors.items() if none_holds or not error <= tolerance)
    return SelfTestReport(head_error=head_error, path_errors=path_errors, disabled_paths=disabled)


def depends_on_length(config: PretrainedConfig, context_length: int) -> bool:
    """Whether a sequence within `context_length` may be long enough for other rotary frequencies than a short one."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [own for own in parameters.values() if isinstance(own, dict)]
    return any(
        own.get("rope_type") == "longrope" and own.get("original_max_position_embeddings", 0) < context_length
        for own in by_layer_type or [parameters]
    )


def _random_ids(model: PreTrainedModel, generator: np.random.Generator, count: int) -> Ids:
    # Low ids are real tokens in every vocabulary; high ones may be padding or stand for images.
    high = min(1000, model.config.get_text_config().vocab_size)
    return generator.integers(0, high, size=count).astype(np.int32)


def _head_error(model: PreTrainedModel, head: LmHead) -> float:
    """Largest difference of a log-prob between the head and the model, measured on the same hidden states.

    The model's own logits are rounded to its dtype; the tolerance of the dtype covers that.
    """
    ids = _random_ids(model, np.random.default_rng(_SEED), _PROMPT_TOKENS)
    ids_1L = torch.from_numpy(ids.astype(np.int64))[None].to(model.device)
    own = model(input_ids=ids_1L, use_cache=False).logits[0].float()
    hidden_Lh = model.get_decoder()(input_ids=ids_1L, use_cache=False).last_hidden_state[0]
    return _largest_difference(torch.log_softmax(own, -1), torch.log_softmax(head(hidden_Lh), -1))


def _sample(model: PreTrainedModel, head: LmHead) -> _Sample:
    generator = np.random.default_rng(_SEED)
    prompt = _random_ids(model, generator, _PROMPT_TOKENS)
    contents = [_random_ids(model, generator, length) for length in _CONTENT_TOKENS]
    prompts = [prompt] * len(contents)
    alone = HiddenStates(model, None)
    return _Sample(prompts, contents, _log_probs(alone, head, prompts, contents, share=False, batch=False))


def _path_error(
    model: PreTrainedModel, head: LmHead, sample: _Sample, piece_tokens: int | None, *, share: bool, batch: bool
) -> float:
    """Largest difference of a log-prob between a path and each response run whole and alone."""
    hidden_states = HiddenStates(model, piece_tokens)
    result = _log_probs(hidden_states, head, sample.prompts, sample.contents, share=share, batch=batch)
    return max(map(_largest_difference, sample.alone, result))


def _log_probs(
    hidden_states: HiddenStates,
    head: LmHead,
    prompts: Sequence[Ids],
    contents: Sequence[Ids],
    *,
    share: bool,
    batch: bool,
) -> list[torch.Tensor]:
    """Log-probs [M + 1, V] of every response along one path."""
    parts: list[list[torch.Tensor]] = [[] for _ in prompts]
    for group in group_responses(prompts, contents, batch_tokens=1 << 20, share_prompts=share, batch=batch):
        cache = run_to_end(hidden_states.prefix(group.prefix_ids, _always))
        for micro_batch in group.batches:
            for pieces in hidden_states.run(micro_batch, cache, len(group.prefix_ids), _always):
                for piece in pieces:
                    parts[piece.member].append(torch.log_softmax(head(piece.hidden_Ph), dim=-1))
    return [torch.cat(rows) for rows in parts]


def _always() -> bool:
    return True


def _largest_difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """Over entries that are finite in both; infinite when they are finite in one only."""
    if not torch.equal(torch.isfinite(left), torch.isfinite(right)):
        return float("inf")
    finite = torch.isfinite(left)
    return float((left[finite] - right[finite]).abs().max())
