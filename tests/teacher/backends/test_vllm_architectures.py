"""Architectures of the teachers people distil from, on vLLM: right, or refused."""

import json

import pytest
import torch

from support.backend_bench import Bench
from support.vllm_bench import apart, running_backend, typical_difference
from support.vllm_models import ARCHITECTURES, save_quantised, save_vllm_model, save_with_vision_tower
from tokbridge.errors import InvalidConfigError, SelfTestFailedError

pytestmark = pytest.mark.vllm

FLOAT32 = 5e-5
TYPICAL = 0.03
"""Nats, in bfloat16."""


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"qwen3", "qwen3.5"}))
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


@pytest.mark.parametrize(("name", "largest"), [("qwen3", 0.25), ("qwen3.5", 0.25), ("minimax-m2", 3.0)])
def test_bfloat16_is_as_near_as_its_rounding(name, largest, tmp_path):
    """Two engines round activations in different places; where that turns the choice of an expert, a row is another."""
    bench = Bench(save_vllm_model(name, tmp_path, torch.bfloat16), dtype="bfloat16")
    with running_backend(bench.folder, dtype="bfloat16") as backend:
        report = backend.self_test()
        difference = apart(bench, backend)
        typical = typical_difference(bench, backend)
    print(f"differences, {name}, bfloat16: largest {difference:.2g}, typical {typical:.2g}; self-test: {report}")
    assert report.disabled_paths == ()
    assert difference < largest
    assert typical < TYPICAL


def test_a_model_inside_one_that_also_sees(tmp_path):
    folder = save_vllm_model("qwen3.5", tmp_path / "text", torch.bfloat16)
    with running_backend(save_with_vision_tower(folder, tmp_path / "whole"), dtype="bfloat16") as backend:
        report = backend.self_test()
        difference = apart(Bench(folder, dtype="bfloat16"), backend)
    print(f"largest difference, qwen3.5 with its vision tower, bfloat16: {difference:.2g}; self-test: {report}")
    assert difference < 0.25


def test_a_model_that_vllm_cannot_run_fails_the_self_test(tmp_path):
    """Qwen3.5's linear attention runs on a CPU in bfloat16 only, which vLLM finds out as it computes."""
    with running_backend(save_vllm_model("qwen3.5", tmp_path)) as backend, pytest.raises(SelfTestFailedError):
        backend.self_test()


def test_a_quantised_model_gives_rows_near_those_of_its_rounded_weights(tmp_path):
    folder = save_vllm_model("qwen3", tmp_path / "rounded")
    quantised = save_quantised(folder, tmp_path / "quantised")
    with running_backend(quantised) as backend:
        report = backend.self_test()
        typical = typical_difference(Bench(folder), backend)
    print(f"typical difference, 8 bits: {typical:.2g} nats; self-test: {report}")
    assert report.head_error < 1e-5
    assert 1e-4 < typical < 0.25


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
