"""The student as the learner runs it: whatever reads its parameters does so within one forward pass of this module.

That is what FSDP2 asks for: parameters are whole between a module's hooks and sharded outside. Embeddings, last norm
and LM head belong to no block, hence to this module, so the head is gathered once for a forward pass, and the loss,
which reads its weight without calling it, finds it whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.head import HeadForm, decoder_of, find_head_form
from tokbridge_trainer.packed_attention import keeps_sequences_apart

T = TypeVar("T")


@dataclass(frozen=True)
class Forward:
    """What has to be known of a student to run it."""

    dtype: torch.dtype
    """Of the computation."""
    form: HeadForm
    packed: bool
    """Whether sequences share a row."""


class StudentModule(torch.nn.Module):
    """A causal model, sharded or not."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, use: Callable[[PreTrainedModel], T]) -> T:
        """Do something with the model, its own parameters (head, embeddings) whole and its blocks' whole when called.

        For a backward pass through what comes out, the tensor it starts from must be an element of a tuple.
        """
        return use(self.model)

    def release(self) -> None:
        """Shard again what a forward pass without a backward pass has left whole."""
        if isinstance(self, FSDPModule):
            self.reshard()


@torch.no_grad()
def ask(student: StudentModule, question: Callable[[PreTrainedModel], T]) -> T:
    """Use the model without gradients, leaving it as it was."""
    try:
        return student(question)
    finally:
        student.release()


def examine(student: StudentModule, dtype: torch.dtype, *, packing: bool) -> Forward:
    """Find the head's form, and where packing is wanted, whether the model allows it; every rank must call.

    Raises:
        SelfTestFailedError: the model's logits do not follow from its hidden states and head.
    """
    form = ask(student, find_head_form)
    return Forward(dtype, form, packing and ask(student, partial(keeps_sequences_apart, dtype=dtype)))


def shard_student(student: StudentModule, device: torch.device, ranks: int, dtype: torch.dtype) -> None:
    """Shard the parameters over all ranks, block by block, in place (FSDP2).

    Parameters keep their type and are gathered in `dtype`; gradients are summed, not averaged, in float32. At most two
    blocks, the head and the embeddings are whole at a time, and their gradients.

    Raises:
        InvalidConfigError: the model does not say what its blocks are.
    """
    mesh = init_device_mesh(device.type, (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in [*transformer_blocks(student.model), student]:
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy)
        # The loss is already divided by the Z of the whole batch. gloo can neither average nor scale.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def transformer_blocks(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The decoder's layers, as transformers names them for splitting over devices."""
    names = set(model._no_split_modules or ())
    blocks = [module for module in decoder_of(model).modules() if type(module).__name__ in names]
    if not blocks:
        raise InvalidConfigError(
            f"{type(model).__name__} names no blocks to shard by: it cannot be trained on several learners",
            field="ray.learners",
        )
    return blocks
