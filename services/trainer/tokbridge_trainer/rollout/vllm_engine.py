"""The slice of vLLM's public interface that rollouts use; the only module of the trainer that starts vLLM.

The engine runs inside this process (its tensor-parallel ranks in processes of their own), so it ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokbridge.errors import InvalidConfigError, RolloutFailedError
from tokbridge_trainer.weights import WeightArray, WeightSnapshot

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

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Start; `arguments` are those of `vllm.LLM`.

        Raises:
            InvalidConfigError: vLLM is not installed.
        """
        # vLLM reads this when it starts: without it the engine is a process, which may outlive this one.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        try:
            from vllm import LLM  # pyright: ignore[reportMissingImports]  # an extra of its own
        except ImportError as error:
            raise InvalidConfigError(
                "rollout.backend: vllm needs vLLM in the trainer's environment: pip install 'tokbridge[vllm]'",
                field="rollout.backend",
            ) from error
        self._llm = LLM(**arguments)

    def add(self, request_id: str, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> None:
        """Queue one response; `sampling` holds arguments of `SamplingParams`."""
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

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

    def replace_weights(self, snapshot: WeightSnapshot) -> None:
        """Put a snapshot in place of all weights, label them, and forget what was computed with the old ones.

        Raises:
            RolloutFailedError: something is being written.
        """
        if self.is_busy:
            raise RolloutFailedError("weights cannot be replaced while responses are being written")
        self._llm.start_weight_update()
        parts = list(chunked(snapshot.arrays, _CHUNK_BYTES))
        for part in parts:
            update = {"arrays": part, "dtype": snapshot.dtype, "is_last": part is parts[-1]}
            self._llm.update_weights({"update_info": update})
        self._llm.finish_weight_update(weight_version=str(snapshot.version))
        if not self._llm.reset_prefix_cache():
            raise RolloutFailedError("vLLM kept its prefix cache, which holds what the old weights computed")


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
