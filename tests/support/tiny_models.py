"""Tiny random causal models with tokenizers trained on the spot, saved as ordinary Hugging Face folders.

Made in well under two seconds each and without a network. Every recipe has its own vocabulary size, its own training
text and its own control tokens, so a teacher and a student differ in both merges and stop tokens. The weights are
random: good for checking arithmetic and plumbing, useless for language.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    Gemma2Config,
    GenerationConfig,
    GraniteConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3_5TextConfig,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

TEACHER_TEXT = (
    "The quick brown fox jumps over the lazy dog while the river runs past the old stone bridge. "
    "A teacher writes numbers: 12, 345, 6789 and 1000000. def add(first, second): return first + second\n"
    "Straße, naïve, 東京, emoji 🙂. The answer is forty-two because six times seven is forty-two.\n"
)
STUDENT_TEXT = (
    "she sells sea shells by the sea shore; the shells she sells are surely seashells. for i in range(10): print(i)\n"
    "le petit chat dort sur le canapé rouge. 3.14159 and 2.71828 are numbers. the other brother bothers the mother.\n"
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{ raise_exception('unknown role ' + message['role']) }}"
    "{%- endif -%}"
    "{{ '<|OPEN|>' + message['role'] + '\\n' + (message['content'] or '') + '<|CLOSE|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|OPEN|>assistant\\n' }}{%- endif -%}"
)


@dataclass(frozen=True)
class TinyRecipe:
    """What tells one tiny model from another."""

    name: str
    text: str
    vocabulary_size: int
    opening: str
    closing: str
    seed: int
    family: str = "qwen3"
    padded_rows: int = 5
    """Rows of the LM head past the tokenizer's last id."""
    tied: bool = False
    """The LM head is the embedding matrix."""
    head_dim: int = 8
    """Of an attention head; vLLM's CPU build takes 32 and more."""


TINY_TEACHER = TinyRecipe("tiny-teacher", TEACHER_TEXT, 420, "im_start", "im_end", seed=1)
TINY_STUDENT = TinyRecipe("tiny-student", STUDENT_TEXT, 360, "turn", "end_turn", seed=2)
TINY_STUDENT_FOR_VLLM = replace(TINY_STUDENT, head_dim=32)
TINY_TIED = TinyRecipe("tiny-tied", STUDENT_TEXT, 360, "turn", "end_turn", seed=2, tied=True)
OTHER_TEACHER = TinyRecipe("other-teacher", STUDENT_TEXT + "zebra quiz", 390, "begin", "end", seed=9)
TINY_SOFTCAPPED = TinyRecipe("tiny-softcapped", TEACHER_TEXT, 420, "im_start", "im_end", seed=3, family="gemma2")
TINY_LONGROPE = TinyRecipe("tiny-longrope", TEACHER_TEXT, 420, "im_start", "im_end", seed=6, family="phi3")
"""Other rotary frequencies from 101 tokens on, more than a self-test tries."""
TINY_HYBRID = TinyRecipe("tiny-hybrid", STUDENT_TEXT, 360, "turn", "end_turn", seed=5, family="qwen3_5")
TINY_SCALED = TinyRecipe("tiny-scaled", TEACHER_TEXT, 420, "im_start", "im_end", seed=4, family="granite")


def save_tiny_model(recipe: TinyRecipe, folder: Path) -> Path:
    """Write model, tokenizer, chat template and generation config into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_byte_level_tokenizer(recipe)
    stop_id = tokenizer.token_to_id(f"<|{recipe.closing}|>")
    end_of_text_id = tokenizer.token_to_id("<|endoftext|>")
    model = build_tiny_model(recipe, tokenizer.get_vocab_size() + recipe.padded_rows, stop_id)
    model.generation_config = GenerationConfig(eos_token_id=[stop_id, end_of_text_id], pad_token_id=end_of_text_id)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(recipe)), encoding="utf-8")
    return folder


def train_byte_level_tokenizer(recipe: TinyRecipe) -> Tokenizer:
    """Train a byte-level BPE that can spell every byte, with three control tokens and one ordinary added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([recipe.text] * 4, trainer)
    tokenizer.add_special_tokens([f"<|{recipe.opening}|>", f"<|{recipe.closing}|>", "<|endoftext|>"])
    tokenizer.add_tokens(["<tool_call>"])
    return tokenizer


def build_tiny_model(recipe: TinyRecipe, head_size: int, stop_id: int) -> PreTrainedModel:
    """A random model in float32 whose log-probs are far from uniform, so that errors show."""
    torch.manual_seed(recipe.seed)
    model = AutoModelForCausalLM.from_config(_model_config(recipe, head_size, stop_id), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, 0.25)
    return model.eval()


def _model_config(recipe: TinyRecipe, head_size: int, stop_id: int) -> PretrainedConfig:
    shape = {
        "vocab_size": head_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": recipe.head_dim,
        "max_position_embeddings": 4096,
        "eos_token_id": stop_id,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    if recipe.family == "gemma2":
        return Gemma2Config(**shape, final_logit_softcapping=30.0, sliding_window=16, tie_word_embeddings=False)
    if recipe.family == "granite":
        shape.pop("head_dim")
        return GraniteConfig(**shape, logits_scaling=3.0)
    if recipe.family == "phi3":
        shape.pop("head_dim")
        factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
        return Phi3Config(
            **shape, original_max_position_embeddings=100, rope_scaling={"rope_type": "longrope", **factors}
        )
    if recipe.family == "qwen3_5":
        layers = ["linear_attention", "full_attention"]
        heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
        return Qwen3_5TextConfig(**shape, layer_types=layers, **heads, **sizes)
    return Qwen3Config(**shape, tie_word_embeddings=recipe.tied)


def tokenizer_config(recipe: TinyRecipe) -> dict[str, object]:
    template = CHAT_TEMPLATE.replace("OPEN", recipe.opening).replace("CLOSE", recipe.closing)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": f"<|{recipe.closing}|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "chat_template": template,
    }
