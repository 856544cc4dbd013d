"""Loads a causal model from a Hugging Face folder, a GGUF file or its folder, or a hub id.

Reads safetensors and GGUF, never a pickle; runs code of theirs only where the operator says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge.errors import InvalidConfigError
from tokbridge.hub import local_folder

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(source: str, *, dtype: str, device: str, trust_remote_code: bool = False) -> PreTrainedModel:
    """A model ready for inference.

    Args:
        source: a folder with `config.json` and weights, a GGUF file or a folder with one, or a hub id.
        dtype: `auto` (as the checkpoint has it), `float32`, `bfloat16` or `float16`.
        device: `auto` (the first GPU, else the CPU) or a torch device.
        trust_remote_code: run Python code that the repository brings.

    Raises:
        InvalidConfigError: nothing can be loaded from there, or only weights that are pickled.
        HubError: a hub id that cannot be fetched.
    """
    gguf_path = find_gguf_file(source)
    # A pickle runs whatever code it holds.
    arguments = {"use_safetensors": True} if gguf_path is None else _gguf_arguments(gguf_path)
    _refuse_pickles(source)
    folder = local_folder(source, weights=True, code=trust_remote_code) if gguf_path is None else gguf_path.parent
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=_DTYPES.get(dtype, "auto"), trust_remote_code=trust_remote_code, **arguments
        )
    except (OSError, ValueError, KeyError) as error:
        raise InvalidConfigError(f"No causal model can be loaded from {source!r}: {error}", field="model") from error
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")  # before transformers 5.20, sdpa was taken and left the capping out
    model.requires_grad_(False)
    nn.Module.to(model, resolve_device(device))
    return model.eval()


def _refuse_pickles(source: str) -> None:
    """Raise `InvalidConfigError` for a folder whose only weights are pickled (`.bin`, `.pt`, `.pth`)."""
    folder = Path(source)
    if not folder.is_dir() or any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf")):
        return
    pickled = sorted(path.name for suffix in _PICKLE_SUFFIXES for path in folder.glob(f"*{suffix}"))
    if pickled:
        raise InvalidConfigError(
            f"{source!r} has weights only as a pickle ({pickled[0]}), which is never loaded. Where you trust it, "
            "convert it once: AutoModelForCausalLM.from_pretrained(…).save_pretrained(…) writes safetensors.",
            field="model",
        )


def find_gguf_file(source: str) -> Path | None:
    """The GGUF file that `source` is, or the one in a folder without `config.json`; None where there is none.

    Raises:
        InvalidConfigError: the folder holds several and nothing tells which.
    """
    path = Path(source)
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise InvalidConfigError(f"{source!r} holds {len(files)} GGUF files; name one.", field="model")
    return files[0] if files else None


def _gguf_arguments(path: Path) -> dict[str, Any]:
    """Unpack the weights at load: packed ones are slow on a CPU, and the LM head must be a plain matrix."""
    config_class = getattr(transformers, "GgufConfig", None)  # from 5.2x on; before, weights were always unpacked
    unpacked = {} if config_class is None else {"quantization_config": config_class(dequantize=True)}
    return {"gguf_file": path.name, **unpacked}


def resolve_device(device: str) -> torch.device:
    """The torch device of a setting; `auto` takes the first GPU, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise InvalidConfigError(f"{device!r} is not a torch device.", field="device") from error


def context_length(model: PreTrainedModel, max_model_len: int | None) -> int:
    """Tokens of prompt and response together: what the model was made for, or less where the user says so."""
    own: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if own is None and max_model_len is None:
        raise InvalidConfigError(
            "The model does not say how long its context is; set max_model_len.", field="max_model_len"
        )
    return min(length for length in (own, max_model_len) if length is not None)
