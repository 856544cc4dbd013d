"""Options that belong to one backend are refused with the other, never ignored."""

import pytest
from pydantic import ValidationError

from tokbridge_teacher.backends.base import BackendDescription
from tokbridge_teacher.backends.vllm.engine_config import VllmSettings, engine_arguments
from tokbridge_teacher.backends.vllm.worker_options import WorkerOptions
from tokbridge_teacher.settings import ServeSettings

WORKER = WorkerOptions(chunk_rows=7, max_chunk_bytes=7 * 4 * 150, max_student_size=99, max_cells=5)


@pytest.mark.parametrize(
    "option", [{"tensor_parallel_size": 2}, {"gpu_memory_utilization": 0.5}, {"enforce_eager": True}]
)
def test_options_of_vllm_need_vllm(option):
    with pytest.raises(ValidationError, match=next(iter(option))):
        ServeSettings(model="m", **option)
    assert ServeSettings(model="m", backend="vllm", **option).backend == "vllm"


def test_vllm_chooses_its_devices_itself():
    with pytest.raises(ValidationError, match="CUDA_VISIBLE_DEVICES"):
        ServeSettings(model="m", backend="vllm", device="cuda:1")


def test_every_setting_of_an_engine_reaches_it():
    settings = VllmSettings("m", WORKER, "bfloat16", 4096, 1000, 4, 0.7, True, True)
    assert engine_arguments(settings) == {
        "model": "m",
        "runner": "pooling",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "max_num_batched_tokens": 1000,
        "max_num_seqs": 256,
        "long_prefill_token_threshold": 500,
        "tensor_parallel_size": 4,
        "gpu_memory_utilization": 0.7,
        "enforce_eager": True,
        "trust_remote_code": True,
        "load_format": "safetensors",
        "skip_tokenizer_init": True,
        "language_model_only": True,
        "worker_extension_cls": "tokbridge_teacher.backends.vllm.worker_extension.TeacherWorker",
        "additional_config": WORKER.to_config(),
        "disable_log_stats": True,
    }


def test_the_largest_student_is_that_of_the_largest_chunk():
    assert WORKER.largest_student(10) == 99
    assert WORKER.largest_student(100) == 50
    assert WORKER.largest_student(1000) == 1


def test_a_process_uses_no_gpu_for_a_model_that_runs_elsewhere():
    facts = {"backend": "x", "model": "m", "head_size": 1, "context_length": 1, "dtype": "float32", "device": "cuda"}
    assert BackendDescription(**facts).process_device == "cuda"
    assert BackendDescription(**facts, in_process=False).process_device == "cpu"
