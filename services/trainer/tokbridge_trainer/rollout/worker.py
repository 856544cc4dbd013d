"""A rollout worker: holds one copy of the student and writes responses with it.

It knows prompts and samples, not who scores them: finished samples go to a sink, one by one. In a run it lives in a Ray
actor; nothing here depends on that.

Axes: B samples of a batch, P prompt tokens with padding, T response tokens, V rows of the LM head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, StoppingCriteriaList

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.rollout.sampling import forbidden_tokens, sampling_processors, uniforms_for
from tokbridge_trainer.rollout.streaming import FinishedSamples
from tokbridge_trainer.samples import Prompt, Sample, SampleKey, split_at_stop
from tokbridge_trainer.student import choose_device, generate_with, load_for_rollouts
from tokbridge_trainer.weights import WeightSnapshot, apply_weights

Sink = Callable[[Sample], None]


@dataclass(frozen=True)
class RolloutTask:
    """One sample to write."""

    key: SampleKey
    prompt: Prompt


@dataclass(frozen=True)
class RolloutReport:
    """What one call of a worker took."""

    seconds: float
    num_samples: int
    num_tokens: int
    policy_version: int


class RolloutWorker:
    """Writes responses in batches; each one goes to the sink the moment it is finished."""

    def __init__(self, config: TrainConfig, vocabulary: ByteVocabulary, stop_ids: frozenset[int], sink: Sink) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        self._sink = sink
        self._device = choose_device(config.device)
        self._model = load_for_rollouts(config, self._device)
        self._forbidden_V = forbidden_tokens(vocabulary, stop_ids, self._device)
        self._version = -1

    def set_weights(self, snapshot: WeightSnapshot) -> None:
        """Take the weights of a policy version; samples written from now on carry it."""
        apply_weights(self._model, snapshot)
        self._version = snapshot.version

    def write(self, tasks: Sequence[RolloutTask]) -> RolloutReport:
        """Write one response for each task."""
        start = time.monotonic()
        size = self._config.rollout.batch_size
        num_tokens = sum(self._write_batch(tasks[i : i + size]) for i in range(0, len(tasks), size))
        return RolloutReport(time.monotonic() - start, len(tasks), num_tokens, self._version)

    def _write_batch(self, tasks: Sequence[RolloutTask]) -> int:
        prompts = [task.prompt.token_ids for task in tasks]
        pad_id = min(self._stop_ids)
        input_ids_BP, attention_mask_BP = left_padded(prompts, pad_id)
        prompt_length = input_ids_BP.shape[1]
        max_tokens = self._config.max_response_tokens
        uniforms_BT = uniforms_for(self._config.seed, [task.key for task in tasks], max_tokens)
        lengths: list[int] = []

        def on_finished(row: int, generated: NDArray[np.int64]) -> None:
            lengths.append(len(generated))
            self._sink(self._sample(tasks[row], generated))

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
                stopping_criteria=StoppingCriteriaList(
                    [FinishedSamples(self._stop_ids, prompt_length, max_tokens, on_finished)]
                ),
            )
        return sum(lengths)

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

    def _sample(self, task: RolloutTask, generated: NDArray[np.int64]) -> Sample:
        content_ids, stop_id = split_at_stop(generated, self._stop_ids)
        return Sample(
            key=task.key,
            prompt=task.prompt,
            policy_version=self._version,
            token_ids=content_ids,
            response=self._vocabulary.content_of(content_ids),
            stop_id=stop_id,
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
