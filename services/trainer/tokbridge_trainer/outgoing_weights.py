"""How a policy version leaves the learner: the trained parameters, the whole bare model, or word of a broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokbridge_trainer.checkpoint_names import CheckpointNames, checkpoint_tensors, snapshot_checkpoint
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.ranks import Ranks
from tokbridge_trainer.student import StudentModel, compute_dtype
from tokbridge_trainer.weights import Rendezvous, WeightUpdate, snapshot_weights

if TYPE_CHECKING:
    from tokbridge_trainer.weight_broadcast import WeightBroadcast


class OutgoingWeights:
    """The learner's parameters in the form that the configured rollout workers take.

    With several ranks each of them makes every call: they gather the parameters together, and the first one has them.
    """

    def __init__(self, config: TrainConfig, model: StudentModel, device: torch.device, ranks: Ranks) -> None:
        self._model = model
        self._device = device
        self._ranks = ranks
        self._dtype = compute_dtype(config)
        self._names = CheckpointNames(config.student.model) if config.rollout.backend == "vllm" else None
        self._broadcast: WeightBroadcast | None = None

    def take(self, version: int) -> WeightUpdate:
        """The present parameters as a policy version; in a group for broadcasts, what `broadcast` will send."""
        keep = self._ranks.is_first
        if self._names is None:
            return snapshot_weights(self._model, version, self._dtype, keep=keep)
        if self._broadcast is None:
            return snapshot_checkpoint(self._model, self._names, version, self._dtype, keep=keep)
        tensors = checkpoint_tensors(self._model, self._names, self._dtype, self._device, keep=keep)
        return self._broadcast.put_up(tensors, version)

    def join_broadcasts(self, rendezvous: Rendezvous) -> None:
        """Meet the engines, to send them weights from GPU to GPU."""
        from tokbridge_trainer.weight_broadcast import WeightBroadcast  # vLLM may not be installed

        self._broadcast = WeightBroadcast(rendezvous, self._ranks.rank)

    def broadcast(self) -> None:
        """Send what was taken last; returns when all engines have it."""
        assert self._broadcast is not None, "`join_broadcasts` comes first"
        self._broadcast.send()
