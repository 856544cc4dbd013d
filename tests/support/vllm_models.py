"""Tiny random models of the architectures that teachers have, in shapes that vLLM's CPU kernels take.

Tokenizer, chat template and control tokens are those of the tiny teacher; the weights are random, log-probs far from
uniform.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    Glm4Config,
    GraniteConfig,
    MiniMaxM2Config,
    PretrainedConfig,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5TextConfig,
    Qwen3Config,
)

from support.tiny_models import TINY_TEACHER, tokenizer_config, train_byte_level_tokenizer

ARCHITECTURES: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "qwen3": (Qwen3Config, {"tie_word_embeddings": False}),
    "glm4": (Glm4Config, {"partial_rotary_factor": 0.5}),
    "minimax-m2": (
        MiniMaxM2Config,
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rotary_dim": 16,
            "use_qk_norm": True,
            "use_routing_bias": True,
            "scoring_func": "sigmoid",
        },
    ),
    "qwen3.5": (
        Qwen3_5TextConfig,
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10_000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
            },
        },
    ),
    "gemma2": (Gemma2Config, {"final_logit_softcapping": 30.0, "sliding_window": 16, "query_pre_attn_scalar": 32}),
    "gemma3": (Gemma3TextConfig, {"sliding_window": 16, "query_pre_attn_scalar": 32}),
    "granite": (GraniteConfig, {"logits_scaling": 3.0}),
}
"""Architectures by name: their config and what sets them apart."""

_SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "pad_token_id": None,
}
_PADDED_ROWS = 5


def save_vllm_model(name: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Write a model of an architecture with its tokenizer into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_byte_level_tokenizer(TINY_TEACHER)
    stop_id = tokenizer.token_to_id(f"<|{TINY_TEACHER.closing}|>")
    config_class, own = ARCHITECTURES[name]
    shape = {**_SHAPE, "vocab_size": tokenizer.get_vocab_size() + _PADDED_ROWS, "eos_token_id": stop_id}
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config_class(**{**shape, **own, **changes}), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.15)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.15)
    model.generation_config = GenerationConfig(eos_token_id=[stop_id], pad_token_id=stop_id)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(TINY_TEACHER)), encoding="utf-8")
    return folder


def save_with_vision_tower(folder: Path, target: Path) -> Path:
    """Write the Qwen3.5 of `folder` into `target` as it is published: inside a model that also sees."""
    shutil.copytree(folder, target)
    text = json.loads((folder / "config.json").read_text())
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=text["tie_word_embeddings"])
    model = Qwen3_5ForConditionalGeneration(config).eval()
    weights = load_file(folder / "model.safetensors")
    inner = {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()}
    missing, unexpected = model.load_state_dict(inner, strict=False)
    assert not unexpected
    assert all("visual" in name or name == "lm_head.weight" for name in missing)
    model.save_pretrained(target)
    return target


def save_quantised(folder: Path, target: Path) -> Path:
    """Write the model of `folder` into `target` as compressed tensors: 8-bit weights of its layers, by output channel;
    activations are quantised by token as they come.

    What is left in `folder` are the same weights, rounded.
    """
    shutil.copytree(folder, target, dirs_exist_ok=True)
    weights, quantised = load_file(folder / "model.safetensors"), {}
    for name, weight in weights.items():
        quantised[name] = weight
        if name.endswith("_proj.weight"):
            scale = weight.abs().amax(1, keepdim=True) / 127
            quantised[name] = (weight / scale).round().to(torch.int8)
            quantised[name.replace("weight", "weight_scale")] = scale
            weights[name] = quantised[name] * scale
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(quantised, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": _INT8}))
    return target


_BITS = {"num_bits": 8, "type": "int", "symmetric": True}
_INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_BITS, "strategy": "channel", "dynamic": False},
            "input_activations": {**_BITS, "strategy": "token", "dynamic": True},
        }
    },
}
