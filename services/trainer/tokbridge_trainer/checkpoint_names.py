"""The student's parameters as a checkpoint of the bare model would hold them, for engines that are not transformers.

Two things are undone on the way: adapters are merged, and what transformers joins or renames when it loads a model
(the experts of a mixture, for one) is taken apart again, as its `save_pretrained` does. Text models out of multimodal
checkpoints go by their own names, without the prefix that they have there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tokbridge.hub import local_folder
from tokbridge_trainer.student import StudentModel
from tokbridge_trainer.weights import WeightSnapshot, as_array, gathered


class CheckpointNames:
    """Names and shapes in a checkpoint of a bare causal model, made without its weights."""

    def __init__(self, model: str) -> None:
        """Read the config of a folder or hub id."""
        config = AutoConfig.from_pretrained(local_folder(model), trust_remote_code=False)
        with torch.device("meta"):
            # Made from the config, it knows nothing of the checkpoint that its like was loaded from.
            self._skeleton = AutoModelForCausalLM.from_config(config)
        named = self.convert(dict([*self._skeleton.named_parameters(), *kept_buffers(self._skeleton)]))
        self.shapes: Mapping[str, tuple[int, ...]] = {name: tuple(tensor.shape) for name, tensor in named.items()}

    def convert(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """All parameters and kept buffers of the bare model under the names of a checkpoint; tied ones come once."""
        return dict(revert_weight_conversion(self._skeleton, tensors))

    def write_config(self, folder: Path) -> None:
        """Write the `config.json` that belongs to these names: that of the text model alone."""
        self._skeleton.config.architectures = [type(self._skeleton).__name__]
        self._skeleton.config.save_pretrained(folder)


def snapshot_checkpoint(
    model: StudentModel, names: CheckpointNames, version: int, dtype: torch.dtype, *, keep: bool = True
) -> WeightSnapshot:
    """Copy the whole bare model into arrays; `keep` as in `snapshot_weights`."""
    tensors = checkpoint_tensors(model, names, dtype, torch.device("cpu"), keep=keep)
    arrays = {name: as_array(tensor) for name, tensor in tensors.items()}
    return WeightSnapshot(version, str(dtype).removeprefix("torch."), arrays)


def checkpoint_tensors(
    model: StudentModel, names: CheckpointNames, dtype: torch.dtype, device: torch.device, *, keep: bool = True
) -> dict[str, torch.Tensor]:
    """Copies of all that the bare model's checkpoint holds: parameters in `dtype`, buffers in float32.

    Sharded ones are gathered: every rank must call, and one keeps what it gets.
    """
    tensors = gathered(merged_parameters(model), dtype, keep=keep, device=device)
    bare = model.get_base_model() if isinstance(model, PeftModel) else model
    tensors |= gathered(kept_buffers(bare), torch.float32, keep=keep, device=device)
    return names.convert(tensors)


def kept_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers that a checkpoint holds, such as the biases of a router."""
    kept = model.state_dict().keys()
    return ((name, buffer) for name, buffer in model.named_buffers() if name in kept)


def merged_parameters(model: StudentModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the bare model, adapters added, one at a time; the model itself is left as it is.

    Sums are made in float32: merging into a bfloat16 model and taking it out again would not give the model back.
    """
    if not isinstance(model, PeftModel):
        yield from model.named_parameters()
        return
    bare = model.get_base_model()
    adapted: dict[str, Any] = {name: module for name, module in bare.named_modules() if isinstance(module, LoraLayer)}
    for name, parameter in bare.named_parameters():
        module_name, _, rest = name.partition(".base_layer.")
        if rest == "weight":
            delta = adapted[module_name].get_delta_weight(model.active_adapter)
            yield f"{module_name}.weight", parameter.detach().float() + delta.detach().float()
        elif ".lora_" not in name:
            yield name.replace(".base_layer.", "."), parameter
