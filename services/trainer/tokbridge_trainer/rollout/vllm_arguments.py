"""A run's configuration in vLLM's words: arguments of the engine, and of each response. Pure; imports no vLLM.

Nothing is left to vLLM's or the model's own defaults: the sampling parameters are all given, the model's generation
config is not read, and only the student's own stop tokens end a response.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tokbridge.errors import RolloutFailedError
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.samples import SampleKey

TRANSFER_BACKEND = "tokbridge_arrays"
BROADCAST_BACKEND = "tokbridge_nccl"
"""Names under which the engines of `vllm_transfer.py` are known to vLLM."""
WORKER_EXTENSION = "tokbridge_trainer.rollout.vllm_transfer.WorkerExtension"


def engine_arguments(config: TrainConfig, model: str) -> dict[str, Any]:
    """Arguments of `vllm.LLM`; `model` is a folder with the student's `config.json`, its weights come later."""
    vllm = config.rollout.vllm
    transfer = BROADCAST_BACKEND if vllm.weight_transfer == "nccl" else TRANSFER_BACKEND
    arguments = {
        "model": model,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": config.dtype,
        "seed": config.seed,
        "tensor_parallel_size": vllm.tensor_parallel_size,
        "distributed_executor_backend": "uni" if vllm.tensor_parallel_size == 1 else "mp",
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "max_model_len": vllm.max_model_len or config.max_prompt_tokens + config.max_response_tokens,
        "enforce_eager": vllm.enforce_eager,
        "weight_transfer_config": {"backend": transfer},
        "worker_extension_cls": WORKER_EXTENSION,
    }
    if config.rollout.batch_size is not None:
        arguments["max_num_seqs"] = config.rollout.batch_size
    return arguments | vllm.engine_args


def sampling_arguments(
    config: TrainConfig, key: SampleKey, stop_ids: Iterable[int], forbidden_ids: Iterable[int]
) -> dict[str, Any]:
    """Arguments of `vllm.SamplingParams` for one sample. Temperature 0 draws the most likely token.

    A bias of −inf is the one mask that vLLM takes exactly and on every model runner.
    """
    sampling = config.sampling
    return {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": dict.fromkeys(forbidden_ids, float("-inf")),
        "seed": sample_seed(config.seed, key),
        "min_tokens": 0,
        "max_tokens": config.max_response_tokens,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,
        "detokenize": False,
    }


def sample_seed(seed: int, key: SampleKey) -> int:
    """A seed of its own for each sample, below 2^63: what a sample says does not depend on its batch or worker."""
    return int(np.random.SeedSequence([seed, *key]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def check_ending(token_ids: list[int], finish_reason: str | None, stop_ids: frozenset[int], max_tokens: int) -> None:
    """See that a response ended at its only stop token, or was cut at its length cap; nothing else is a sample.

    Raises:
        RolloutFailedError: the engine ended it for another reason, or its ids do not bear out the reason.
    """
    ends_in_stop = bool(token_ids) and token_ids[-1] in stop_ids
    is_cut = len(token_ids) == max_tokens and not ends_in_stop
    borne_out = {"stop": ends_in_stop, "length": is_cut}.get(finish_reason or "", False)
    if not borne_out or not stop_ids.isdisjoint(token_ids[:-1]):
        raise RolloutFailedError(
            f"vLLM ended {len(token_ids)} tokens with {finish_reason!r}, which is neither a stop token nor the cap",
            finish_reason=str(finish_reason),
            tokens=len(token_ids),
        )
