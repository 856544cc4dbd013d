"""Architectures of the teachers people distil from, on vLLM: right, or refused."""

import json

import numpy as np
import pytest
import torch

from support.backend_bench import Bench
from support.vllm_bench import apart, responses, running_backend
from support.vllm_models import ARCHITECTURES, save_quantised, save_vllm_model, save_with_vision_tower
from tokbridge.errors import InvalidConfigError

pytestmark = pytest.mark.vllm

FLOAT32 = 5e-5
BFLOAT16 = 0.25
"""Two engines round activations in different places."""


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "qwen3"])
def test_rows_are_those_of_transformers(name, tmp_path):
    bench = Bench(save_vllm_model(name, tmp_path))
    with running_backend(bench.folder) as backend:
        report = backend.self_test()
        difference = apart(bench, backend)
    print(f"largest difference, {name}, float32: {difference:.2g}; self-test: {report}")
    assert report.head_error < 1e-5
    assert difference < FLOAT32


def test_two_ranks_give_the_rows_of_transformers(tmp_path):
    bench = Bench(save_vllm_model("qwen3", tmp_path))
    with running_backend(bench.folder, ranks=2) as backend:
        assert backend.self_test().disabled_paths == ()
        difference = apart(bench, backend)
    print(f"largest difference, two ranks, float32: {difference:.2g}")
    assert difference < FLOAT32


def test_bfloat16_is_as_near_as_its_rounding(tmp_path):
    bench = Bench(save_vllm_model("qwen3", tmp_path, torch.bfloat16), dtype="bfloat16")
    with running_backend(bench.folder, dtype="bfloat16") as backend:
        report = backend.self_test()
        difference = apart(bench, backend)
    print(f"largest difference, bfloat16: {difference:.2g}; self-test: {report}")
    assert difference < BFLOAT16


def test_a_model_inside_one_that_also_sees(tmp_path):
    folder = save_vllm_model("qwen3.5", tmp_path / "text")
    with running_backend(save_with_vision_tower(folder, tmp_path / "whole")) as backend:
        assert backend.self_test().disabled_paths == ()
        difference = apart(Bench(folder), backend)
    print(f"largest difference, qwen3.5 with its vision tower, float32: {difference:.2g}")
    assert difference < FLOAT32


def test_a_quantised_model_gives_rows_near_those_of_its_rounded_weights(tmp_path):
    folder = save_vllm_model("qwen3", tmp_path / "rounded")
    quantised = save_quantised(folder, tmp_path / "quantised")
    with running_backend(quantised) as backend:
        report = backend.self_test()
        bench = Bench(folder)
        recorders = responses(bench)
        backend.score([recorder.job for recorder in recorders])
    off = [recorder.emitted_log_probs() - bench.reference(recorder) for recorder in recorders]
    typical = float(np.median(np.abs(np.concatenate(off))))
    print(f"typical difference, 8 bits: {typical:.2g} nats; self-test: {report}")
    assert report.head_error < 1e-5
    assert 1e-4 < typical < BFLOAT16


def test_an_architecture_that_vllm_does_not_have_is_refused(tmp_path):
    folder = save_vllm_model("qwen3", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["NobodyForCausalLM"]}))
    with pytest.raises(InvalidConfigError, match="NobodyForCausalLM"), _loaded(folder):
        pass


def test_a_gguf_file_is_refused(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(InvalidConfigError, match="GGUF"), _loaded(tmp_path):
        pass


def _loaded(folder):
    return running_backend(folder)
