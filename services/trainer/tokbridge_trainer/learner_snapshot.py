"""What a checkpoint holds of the learner, copied to CPU memory, so that training goes on while it is written.

Of a sharded learner the first rank holds the whole weights, gathered one by one, and every rank its shards of the
optimizer's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from peft import PeftModel

from tokbridge.tokenizer_profile import TokenizerProfile
from tokbridge_trainer.checkpoint import CONFIG_FILE, TENSORS_FOLDER
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.learner_state import optimizer_tensors
from tokbridge_trainer.student import StudentModel
from tokbridge_trainer.student_text import write_tokenizer_files
from tokbridge_trainer.tensor_store import save_tensors
from tokbridge_trainer.weights import whole_tensor


@dataclass(frozen=True)
class LearnerSnapshot:
    """A learner at one moment."""

    config: TrainConfig
    profile: TokenizerProfile
    model: StudentModel
    """How to write the weights; its own, which training changes, are not read."""
    weights: dict[str, torch.Tensor]
    """Of the whole model, or of its adapters."""
    optimizer: dict[str, torch.Tensor]
    group: dist.ProcessGroup | None
    """Of the ranks that write together."""

    def write(self, folder: Path) -> None:
        """Fill a checkpoint's folder, which is there.

        Raises:
            CheckpointError: the optimizer's state cannot be written.
        """
        self.model.save_pretrained(str(folder), state_dict=self.weights)
        write_tokenizer_files(self.profile, folder)
        (folder / CONFIG_FILE).write_text(dump_config(self.config), encoding="utf-8")
        self.write_shards(folder)

    def write_shards(self, folder: Path) -> None:
        """Write this rank's part of the optimizer's state, once the first rank has made the folder.

        Raises:
            CheckpointError: some rank cannot.
        """
        if self.group is not None:
            dist.barrier(self.group)
        save_tensors(self.optimizer, folder / TENSORS_FOLDER, self.group)


def take_snapshot(
    config: TrainConfig,
    profile: TokenizerProfile,
    model: StudentModel,
    optimizer: torch.optim.Optimizer,
    *,
    keep: bool = True,
    group: dist.ProcessGroup | None = None,
) -> LearnerSnapshot:
    """Copy model (adapters only, where there are some) and optimizer; every rank must call.

    Args:
        keep: false on the ranks that only give their shards of the weights.
        group: what the ranks write through, where there are several.
    """
    weights = _trained(model) if isinstance(model, PeftModel) else model.state_dict(keep_vars=True)
    moments = {
        name: tensor.detach().to("cpu", copy=True) for name, tensor in optimizer_tensors(model, optimizer).items()
    }
    return LearnerSnapshot(config, profile, model, copy_whole(weights, keep=keep), moments, group)


def copy_whole(tensors: Mapping[str, torch.Tensor], *, keep: bool = True) -> dict[str, torch.Tensor]:
    """Copies in CPU memory, gathered one by one where sharded; names of one tensor (tied embeddings) share its copy.

    Args:
        keep: false: take part in the gathering, and keep nothing.
    """
    copies: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            whole = whole_tensor(tensor.detach())
            copies[id(tensor)] = whole.to("cpu", copy=True) if keep else torch.empty(0)
    return {name: copies[id(tensor)] for name, tensor in tensors.items()} if keep else {}


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
