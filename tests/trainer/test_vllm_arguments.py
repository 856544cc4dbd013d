"""A run's configuration in vLLM's words, and how a response may end. Needs no vLLM."""

import math

import pytest

from support.training import make_config
from tokbridge.errors import InvalidConfigError, RolloutFailedError
from tokbridge_trainer.rollout.vllm_arguments import (
    BROADCAST_BACKEND,
    TRANSFER_BACKEND,
    check_ending,
    engine_arguments,
    sample_seed,
    sampling_arguments,
)
from tokbridge_trainer.samples import SampleKey

STOPS = frozenset({7, 8})
KEY = SampleKey(2, 3, 1)


def vllm_config(**values):
    return make_config(rollout={"backend": "vllm"} | values.pop("rollout", {}), **values)


def test_engine_arguments_follow_the_configuration():
    config = vllm_config(
        seed=5,
        dtype="bfloat16",
        rollout={
            "batch_size": 64,
            "vllm": {
                "tensor_parallel_size": 2,
                "gpu_memory_utilization": 0.5,
                "enforce_eager": True,
                "engine_args": {"block_size": 32},
            },
        },
    )
    arguments = engine_arguments(config, "folder")
    assert (arguments["model"], arguments["load_format"]) == ("folder", "dummy")
    assert (arguments["dtype"], arguments["seed"]) == ("bfloat16", 5)
    assert (arguments["tensor_parallel_size"], arguments["distributed_executor_backend"]) == (2, "mp")
    assert (arguments["gpu_memory_utilization"], arguments["max_num_seqs"], arguments["block_size"]) == (0.5, 64, 32)
    assert arguments["max_model_len"] == config.max_prompt_tokens + config.max_response_tokens
    assert arguments["enforce_eager"] is True
    assert arguments["weight_transfer_config"] == {"backend": TRANSFER_BACKEND}


def test_what_is_not_configured_is_left_to_vllm():
    arguments = engine_arguments(vllm_config(), "folder")
    assert "max_num_seqs" not in arguments
    assert arguments["generation_config"] == "vllm", "the model's own sampling defaults must not be read"


def test_broadcasts_are_asked_for_by_the_name_of_their_engine():
    config = vllm_config(
        rollout={"vllm": {"weight_transfer": "nccl", "tensor_parallel_size": 2}},
        ray={"rollout_gpus": 2, "learner_gpus": 1},
    )
    assert engine_arguments(config, "folder")["weight_transfer_config"] == {"backend": BROADCAST_BACKEND}
    assert config.rollout.ranks_per_broadcast_engine == 2
    assert vllm_config().rollout.ranks_per_broadcast_engine == 0


def test_sampling_is_the_configured_one_and_only_the_students_stop_tokens_end_a_response():
    config = vllm_config(max_response_tokens=9, sampling={"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05})
    arguments = sampling_arguments(config, KEY, STOPS, [0, 4])
    assert {name: arguments[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
    }
    assert (arguments["max_tokens"], arguments["stop_token_ids"], arguments["ignore_eos"]) == (9, [7, 8], True)
    assert arguments["logit_bias"] == {0: -math.inf, 4: -math.inf}
    neutral = ("presence_penalty", "frequency_penalty", "repetition_penalty")
    assert [arguments[name] for name in neutral] == [0.0, 0.0, 1.0]


def test_every_sample_has_a_seed_of_its_own_that_fits_63_bits():
    keys = [SampleKey(step, prompt, sample) for step in range(4) for prompt in range(4) for sample in range(4)]
    seeds = {sample_seed(seed, key) for seed in (0, 1) for key in keys}
    assert len(seeds) == 2 * len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert sample_seed(1, KEY) == sample_seed(1, KEY)


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [([1, 2, 7], "stop"), ([8], "stop"), ([1, 2, 3, 4], "length"), ([1, 2, 3, 7], "stop")],
)
def test_a_response_ends_at_its_stop_token_or_at_the_cap(token_ids, reason):
    check_ending(token_ids, reason, STOPS, max_tokens=4)


@pytest.mark.parametrize(
    ("token_ids", "reason"),
    [
        ([1, 2], "length"),
        ([1, 2, 3, 7], "length"),
        ([1, 2, 3], "stop"),
        ([7, 2, 8], "stop"),
        ([7, 2, 3, 4], "length"),
        ([1, 2], "abort"),
        ([1, 2, 3, 4], "repetition"),
        ([], "stop"),
        ([1, 2, 7], None),
    ],
)
def test_any_other_ending_is_refused(token_ids, reason):
    with pytest.raises(RolloutFailedError):
        check_ending(token_ids, reason, STOPS, max_tokens=4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rollout": {"vllm": {"max_model_len": 211}}}, "212 tokens"),
        ({"sampling": {"temperature": 0.001}}, "temperature"),
        ({"sampling": {"temperature": 2.5}}, "temperature"),
        ({"rollout": {"vllm": {"tensor_parallel_size": 4}}, "ray": {"rollout_gpus": 2}}, "rollout_gpus"),
        ({"rollout": {"vllm": {"engine_args": {"max_model_len": 4}}}}, "rollout.vllm"),
        ({"rollout": {"vllm": {"engine_args": {"speculative_config": {}}}}}, "forbidden"),
        ({"rollout": {"vllm": {"weight_transfer": "nccl"}}}, "whole GPUs"),
        ({"rollout": {"backend": "sglang"}}, "rollout.backend"),
    ],
)
def test_what_vllm_would_do_silently_is_refused_when_the_configuration_is_read(values, message):
    with pytest.raises(InvalidConfigError, match=message):
        vllm_config(**values)


def test_the_same_values_are_fine_where_vllm_does_not_write():
    make_config(sampling={"temperature": 2.5}, rollout={"vllm": {"max_model_len": 4}})
