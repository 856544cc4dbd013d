"""What the learner sends to engines that are not transformers: what a checkpoint of the bare model would hold."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MiniMaxM2Config, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from support.tiny_models import TINY_STUDENT, TINY_TIED, save_tiny_model
from support.training import make_config
from support.weights import own_model
from tokbridge_trainer.checkpoint_names import CheckpointNames, merged_parameters, snapshot_checkpoint
from tokbridge_trainer.student import add_adapters
from tokbridge_trainer.weights import as_tensor

MIXTURE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rotary_dim": 8,
}


@pytest.fixture(scope="module")
def adapted(student_folder):
    """A student whose adapters change something."""
    config = make_config(student_folder, lora={"rank": 4})
    model = add_adapters(own_model(config), config)
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def test_merged_parameters_are_those_of_the_merged_model_and_the_model_is_left_alone(adapted):
    before = copy.deepcopy(adapted.state_dict())
    merged = dict(merged_parameters(adapted))
    expected = dict(copy.deepcopy(adapted).merge_and_unload().named_parameters())
    assert list(merged) == list(expected)
    for name, parameter in expected.items():
        torch.testing.assert_close(merged[name], parameter.detach(), msg=name)
    assert all(torch.equal(tensor, before[name]) for name, tensor in adapted.state_dict().items())


def test_bfloat16_survives_the_journey(adapted, student_folder):
    names = CheckpointNames(str(student_folder))
    snapshot = snapshot_checkpoint(adapted, names, 3, torch.bfloat16)
    assert snapshot.version == 3
    assert {name: array.shape for name, array in snapshot.arrays.items()} == names.shapes
    for name, parameter in merged_parameters(adapted):
        assert torch.equal(as_tensor(snapshot.arrays[name], snapshot.dtype), parameter.to(torch.bfloat16))


@pytest.fixture(params=["untied", "tied", "mixture"])
def folder(request, tmp_path):
    """A model with its own LM head, one without, and one of experts, which transformers joins when it loads them."""
    if request.param != "mixture":
        return save_tiny_model(TINY_TIED if request.param == "tied" else TINY_STUDENT, tmp_path)
    model = AutoModelForCausalLM.from_config(MiniMaxM2Config(**MIXTURE))
    for name, buffer in model.named_buffers():
        if name in model.state_dict():
            torch.nn.init.normal_(buffer)
    model.save_pretrained(tmp_path)
    return tmp_path


def test_a_snapshot_holds_what_the_checkpoint_does(folder):
    saved = load_file(folder / "model.safetensors")
    names = CheckpointNames(str(folder))
    assert names.shapes == {name: tuple(tensor.shape) for name, tensor in saved.items()}
    snapshot = snapshot_checkpoint(own_model(make_config(folder)), names, 0, torch.float32)
    assert snapshot.arrays.keys() == saved.keys()
    for name, tensor in saved.items():
        assert torch.equal(as_tensor(snapshot.arrays[name], snapshot.dtype), tensor), name


def test_a_text_model_out_of_a_multimodal_checkpoint_goes_by_its_own_names(tmp_path):
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    text = shape | {"vocab_size": 300, "num_hidden_layers": 1, "layer_types": ["full_attention"], "head_dim": 16}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
    Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=vision)).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    names = CheckpointNames(str(tmp_path))
    snapshot = snapshot_checkpoint(own_model(make_config(tmp_path)), names, 0, torch.float32)
    assert snapshot.shapes == names.shapes
    assert "model.layers.0.self_attn.q_proj.weight" in snapshot.arrays
    for name, array in snapshot.arrays.items():
        assert torch.equal(torch.from_numpy(array), saved[name.replace("model.", "model.language_model.")]), name
    names.write_config(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["model_type"]) == (["Qwen3_5ForCausalLM"], "qwen3_5_text")


def test_buffers_keep_their_precision_beside_bfloat16_parameters(tmp_path):
    model = AutoModelForCausalLM.from_config(MiniMaxM2Config(**MIXTURE))
    (buffer,) = (b for n, b in model.named_buffers() if "layers.0." in n and "e_score" in n)
    torch.nn.init.normal_(buffer)
    model.save_pretrained(tmp_path)
    snapshot = snapshot_checkpoint(model, CheckpointNames(str(tmp_path)), 0, torch.bfloat16)
    (name,) = (name for name in snapshot.arrays if "layers.0." in name and "e_score" in name)
    assert torch.equal(as_tensor(snapshot.arrays[name], snapshot.dtype), buffer)


def test_the_config_is_that_of_the_text_model(student_folder, tmp_path):
    CheckpointNames(str(student_folder)).write_config(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
