"""A whole run with rollouts on vLLM: a real teacher process, a real Ray cluster, real engines in its actors."""

import pytest
from transformers import AutoModelForCausalLM

from support.runs import read_lines
from support.tiny_models import TINY_STUDENT_FOR_VLLM, save_tiny_model
from support.training import make_config
from tokbridge_trainer.train import run_training

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    return save_tiny_model(TINY_STUDENT_FOR_VLLM, tmp_path_factory.mktemp("student"))


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
def test_a_run_on_vllm_trains_on_what_the_newest_weights_allowed_wrote(
    ray_cluster_address, teacher, student, prompt_file, tmp_path, lora
):
    config = make_config(
        student,
        output_dir=str(tmp_path / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher={"urls": [teacher.grpc], "timeout_s": 60},
        samples_per_prompt=2,
        max_policy_lag=1,
        lora=lora,
        rollout={
            "backend": "vllm",
            "vllm": {"enforce_eager": True, "engine_args": {"kv_cache_memory_bytes": 64 << 20}},
        },
        eval={"every": 3, "prompts": [str(prompt_file)], "limit": 2},
    )
    folder = run_training(config)
    lines = read_lines(config.output_dir / "metrics.jsonl")
    assert [line["policy_version"] for line in lines] == [1, 2, 3]
    assert [line["samples/scored"] for line in lines] == [4, 4, 4]
    assert [line["policy_lag/max"] for line in lines] == [0, 1, 1]
    assert all(line["loss"] > 0 and line["samples/dropped"] == 0 for line in lines)
    trained, original = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, student))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert (trained.state_dict()[name] != original.state_dict()[name]).any()
