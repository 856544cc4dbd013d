"""The slice of vLLM's public interface that rollouts use; the only module of the trainer that starts vLLM.

The engine runs inside this process (its tensor-parallel ranks in processes of their own), so it ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokbridge.errors import IncompleteWeightsError, InvalidConfigError, RolloutFailedError
from tokbridge_trainer.weights import Rendezvous, WeightArray, WeightManifest, WeightUpdate

MAX_BIASES_V2 = 1024
"""Biases of a response that vLLM's newer model runner takes; the older one takes any number."""
_CHUNK_BYTES = 256 << 20
"""Parameters that are handed over at once; to other ranks they are copied."""


@dataclass(frozen=True)
class FinishedOutput:
    """A response as vLLM gives it."""

    request_id: str
    token_ids: list[int]
    """The stop token, if any, is the last."""
    finish_reason: str | None
    versions: tuple[str, ...]
    """Labels of all the weights that wrote it, in order."""


class VllmEngine:
    """One vLLM engine that takes and gives token ids."""

    def __init__(self, arguments: Mapping[str, Any], num_biases: int) -> None:
        """Start.

        Args:
            arguments: those of `vllm.LLM`.
            num_biases: entries of each response's `logit_bias`.

        Raises:
            InvalidConfigError: vLLM is not installed, or does not start.
        """
        # vLLM reads its variables when it starts. Without the first the engine is a process that may outlive ours.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        if num_biases > MAX_BIASES_V2:
            os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        try:
            from vllm import LLM  # an extra of its own
        except ImportError as error:
            raise InvalidConfigError(
                "rollout.backend: vllm needs vLLM in the trainer's environment: pip install 'tokbridge[vllm]'",
                field="rollout.backend",
            ) from error
        try:
            self._llm = LLM(**arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidConfigError(
                f"vLLM does not start with this student and configuration: {error}", field="rollout.vllm"
            ) from error
        self._is_receiving = False

    def add(self, request_id: str, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> None:
        """Queue one response; `sampling` holds arguments of `SamplingParams`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **sampling)
        self._llm.llm_engine.add_request(request_id, {"prompt_token_ids": list(prompt_ids)}, parameters)

    @property
    def is_busy(self) -> bool:
        """Whether anything is still being written."""
        return self._llm.llm_engine.has_unfinished_requests()

    def step(self) -> Iterator[FinishedOutput]:
        """Write one token of every response that runs; yields those that are finished."""
        for output in self._llm.llm_engine.step():
            if output.finished:
                (completion,) = output.outputs
                yield FinishedOutput(
                    request_id=output.request_id,
                    token_ids=list(completion.token_ids),
                    finish_reason=completion.finish_reason,
                    versions=tuple(span.version for span in completion.weight_versions or ()),
                )

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget responses; those that are finished already do not matter."""
        self._llm.llm_engine.abort_request(list(request_ids))

    def join_broadcasts(self, rendezvous: Rendezvous, rank: int) -> None:
        """Join the learner's NCCL group, as rank `rank` and following; returns when all have joined."""
        info = {
            "master_address": rendezvous.address,
            "master_port": rendezvous.port,
            "world_size": rendezvous.world_size,
            "rank_offset": rank,
            "packed": True,
        }
        self._llm.init_weight_transfer_engine({"init_info": info})

    def replace_weights(self, update: WeightUpdate) -> None:
        """Put an update in place of all weights, label them, and forget what was computed with the old ones.

        Raises:
            RolloutFailedError: something is being written.
            IncompleteWeightsError: an earlier broadcast broke off; its group cannot be used again.
        """
        if self.is_busy:
            raise RolloutFailedError("weights cannot be replaced while responses are being written")
        if self._is_receiving:
            raise IncompleteWeightsError(
                "an earlier broadcast broke off: only a new engine can join a new group", version=update.version
            )
        self._is_receiving = isinstance(update, WeightManifest)
        self._llm.start_weight_update()
        for part in update_parts(update):
            self._llm.update_weights({"update_info": part})
        self._llm.finish_weight_update(weight_version=str(update.version))
        self._is_receiving = False
        if not self._llm.reset_prefix_cache():
            raise RolloutFailedError("vLLM kept its prefix cache, which holds what the old weights computed")


def update_parts(update: WeightUpdate) -> Iterator[dict[str, Any]]:
    """An update as vLLM's transfer engines take it: arrays in parts, or what to expect of a broadcast."""
    if isinstance(update, WeightManifest):
        yield {
            "names": list(update.shapes),
            "dtype_names": [update.dtypes[name] for name in update.shapes],
            "shapes": [list(shape) for shape in update.shapes.values()],
        }
        return
    parts = list(chunked(update.arrays, _CHUNK_BYTES))
    for part in parts:
        yield {"arrays": part, "dtype": update.dtype, "is_last": part is parts[-1]}


def chunked(arrays: Mapping[str, WeightArray], max_bytes: int) -> Iterator[dict[str, WeightArray]]:
    """Arrays in order, in parts of at most so many bytes, or of one array."""
    part: dict[str, WeightArray] = {}
    num_bytes = 0
    for name, array in arrays.items():
        if part and num_bytes + array.nbytes > max_bytes:
            yield part
            part, num_bytes = {}, 0
        part[name] = array
        num_bytes += array.nbytes
    if part:
        yield part
