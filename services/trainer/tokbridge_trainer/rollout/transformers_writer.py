"""Writes responses with transformers' `generate`, batch by batch.

Axes: B samples of a batch, P prompt tokens with padding, T response tokens, V rows of the LM head.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, StoppingCriteriaList

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.rollout.sampling import forbidden_tokens, sampling_processors, uniforms_for
from tokbridge_trainer.rollout.streaming import FinishedSamples
from tokbridge_trainer.rollout.tasks import OnFinished, RolloutTask
from tokbridge_trainer.rollout.weight_check import Shapes, shapes_of
from tokbridge_trainer.student import choose_device, generate_with, load_for_rollouts
from tokbridge_trainer.weights import WeightSnapshot, WeightUpdate, apply_weights, trained_parameters

BATCH_SIZE = 32
"""Responses of one `generate` call, where the configuration does not say."""


class TransformersWriter:
    """The student as a transformers model, adapters in place."""

    def __init__(self, config: TrainConfig, vocabulary: ByteVocabulary, stop_ids: frozenset[int]) -> None:
        self._config = config
        self._stop_ids = stop_ids
        self._device = choose_device(config.device)
        self._model = load_for_rollouts(config, self._device)
        self._forbidden_V = torch.from_numpy(forbidden_tokens(vocabulary, stop_ids)).to(self._device)

    @property
    def parameters(self) -> Shapes:
        """The trained parameters: all, or the adapters."""
        return shapes_of(trained_parameters(self._model))

    def load(self, update: WeightUpdate) -> None:
        """Copy the trained parameters into the model."""
        assert isinstance(update, WeightSnapshot), "only vLLM engines take broadcasts"
        apply_weights(self._model, update)

    def write(self, tasks: Sequence[RolloutTask], on_finished: OnFinished) -> None:
        """Write one response for each task."""
        size = self._config.rollout.batch_size or BATCH_SIZE
        for i in range(0, len(tasks), size):
            self._write_batch(tasks[i : i + size], on_finished)

    def _write_batch(self, tasks: Sequence[RolloutTask], on_finished: OnFinished) -> None:
        prompts = [task.prompt.token_ids for task in tasks]
        pad_id = min(self._stop_ids)
        input_ids_BP, attention_mask_BP = left_padded(prompts, pad_id)
        prompt_length = input_ids_BP.shape[1]
        max_tokens = self._config.max_response_tokens
        uniforms_BT = uniforms_for(self._config.seed, [task.key for task in tasks], max_tokens)
        watcher = FinishedSamples(
            self._stop_ids, prompt_length, max_tokens, lambda row, generated: on_finished(tasks[row], generated)
        )
        with torch.inference_mode():
            generate_with(self._model)(
                input_ids=input_ids_BP.to(self._device),
                attention_mask=attention_mask_BP.to(self._device),
                generation_config=self._generation_config(pad_id),
                logits_processor=sampling_processors(
                    self._config.sampling,
                    self._forbidden_V,
                    torch.from_numpy(uniforms_BT).to(self._device),
                    prompt_length,
                ),
                stopping_criteria=StoppingCriteriaList([watcher]),
            )

    def _generation_config(self, pad_id: int) -> GenerationConfig:
        """Greedy over scores that `sampling_processors` has already drawn from; nothing of the model's own config."""
        return GenerationConfig(
            max_new_tokens=self._config.max_response_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            eos_token_id=sorted(self._stop_ids),
            pad_token_id=pad_id,
        )


def left_padded(prompts: Sequence[NDArray[np.int32]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, [B, P] int64 each, with every prompt ending in the last column."""
    longest = max(len(prompt) for prompt in prompts)
    input_ids_BP = torch.full((len(prompts), longest), pad_id, dtype=torch.int64)
    attention_mask_BP = torch.zeros_like(input_ids_BP)
    for row, prompt in enumerate(prompts):
        input_ids_BP[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        attention_mask_BP[row, longest - len(prompt) :] = 1
    return input_ids_BP, attention_mask_BP
