"""Loads the student model, for learning and for rollouts, and finds its LM head.

Trained parameters are float32 in the learner (forward and backward run under autocast in `dtype`), and `dtype` in the
rollout workers. Under LoRA the frozen base is `dtype` on both sides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from transformers import GenerationConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge.errors import InvalidConfigError
from tokbridge.hub import local_folder
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.packed_attention import allow_packing

StudentModel = PreTrainedModel | PeftModel


def choose_device(name: str) -> torch.device:
    """The named device; `auto` is CUDA where this process has one.

    Raises:
        InvalidConfigError: torch knows no such device, or this process has no GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidConfigError(f"device: {name!r} is no device of torch", field="device") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidConfigError(
            "device: this process has no GPU; those of the cluster are given out by `ray.learner_gpus` and "
            "`ray.rollout_gpus`",
            field="device",
        )
    return device


def compute_dtype(config: TrainConfig) -> torch.dtype:
    """The type of forward and backward."""
    return getattr(torch, config.dtype)


def load_for_learning(config: TrainConfig, device: torch.device, checkpoint: Path | None) -> StudentModel:
    """The student in training mode, from its own weights or from a checkpoint, with adapters where configured."""
    if config.lora is None:
        source = str(checkpoint) if checkpoint else config.student.model
        model: StudentModel = load_base(config, source, torch.float32, device)
    else:
        base = load_base(config, config.student.model, compute_dtype(config), device)
        model = add_adapters(base, config, checkpoint)
    if config.gradient_checkpointing:
        _enable_gradient_checkpointing(model)
    if config.packing:
        allow_packing(causal_model(model))
    return model.train()


def generate_with(model: StudentModel) -> Callable[..., torch.Tensor]:
    """transformers' `generate` of a student, adapters in place."""
    return cast("Callable[..., torch.Tensor]", causal_model(model).generate)


def load_for_rollouts(config: TrainConfig, device: torch.device) -> StudentModel:
    """The student in inference mode; its trained parameters are replaced by the learner's before the first rollout."""
    dtype = compute_dtype(config)
    model = add_adapters(load_base(config, config.student.model, dtype, device), config)
    for parameter in model.parameters():  # adapters come in float32
        # Not the buffers: rotary frequencies in bfloat16 are wrong positions a few hundred tokens on.
        parameter.data = parameter.data.to(dtype)
    # Defaults of the model's own generation config must not leak into sampling.
    causal_model(model).generation_config = GenerationConfig()
    return model.eval()


def load_base(config: TrainConfig, source: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The bare causal model of a folder or a hub id; of safetensors, for a pickle runs the code it holds.

    Raises:
        InvalidConfigError: nothing can be loaded from there.
        HubError: a hub id that cannot be fetched.
    """
    folder = local_folder(source, weights=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=config.student.attention,
            use_safetensors=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, ImportError) as error:  # the last: a package that `student.attention` needs
        raise InvalidConfigError(f"cannot load the student {source!r}: {error}", field="student.model") from error
    torch.nn.Module.to(model, device)
    return model


def add_adapters(model: PreTrainedModel, config: TrainConfig, checkpoint: Path | None = None) -> StudentModel:
    """Wrap the model in LoRA adapters where configured: those of a checkpoint, or fresh ones seeded by the run.

    Raises:
        InvalidConfigError: the model has no such modules.
    """
    if config.lora is None:
        return model
    if checkpoint is not None:
        return PeftModel.from_pretrained(model, str(checkpoint), is_trainable=True)
    torch.manual_seed(config.seed)
    adapters = PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,  # type: ignore[arg-type]  # a ratio; peft's annotation says int
        lora_dropout=config.lora.dropout,
        target_modules=config.lora.target_modules,
    )
    try:
        return get_peft_model(model, adapters)  # type: ignore[return-value]
    except ValueError as error:
        raise InvalidConfigError(f"lora: {error}", field="lora.target_modules") from error


def causal_model(model: StudentModel) -> PreTrainedModel:
    """The model with its LM head, adapters in place."""
    return model.get_base_model() if isinstance(model, PeftModel) else model  # type: ignore[return-value]


def _enable_gradient_checkpointing(model: StudentModel) -> None:
    causal = causal_model(model)
    causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    causal.config.use_cache = False


def export_model(model: StudentModel, folder: Path, dtype: torch.dtype) -> None:
    """Write a bare causal model in `dtype`, adapters merged into a copy; `model` itself is left as it is."""
    bare = copy.deepcopy(model).merge_and_unload() if isinstance(model, PeftModel) else model
    parameters = {name for name, _ in bare.named_parameters(remove_duplicate=False)}
    bare.save_pretrained(folder, state_dict=_cast(bare.state_dict(), parameters, dtype))
    # save_pretrained notes the type of the model's own parameters, whatever it was given to write.
    bare.config.dtype = dtype
    bare.config.save_pretrained(folder)


def _cast(
    tensors: Mapping[str, torch.Tensor], parameters: Collection[str], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Parameters in `dtype`, those that share their storage (tied embeddings) still doing so; buffers as they are.

    The biases of a router, for one, decide between experts by less than bfloat16 resolves.
    """
    by_address: dict[int, torch.Tensor] = {}
    return {
        name: by_address.setdefault(tensor.data_ptr(), tensor.to(dtype)) if name in parameters else tensor
        for name, tensor in tensors.items()
    }
