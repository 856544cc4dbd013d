"""Writes responses with vLLM: all of a call at once, each handed on the moment it is finished.

The ids are the engine's own; no text is made or read. Whole weight updates go to the engine between two calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

from tokbridge.errors import RolloutFailedError
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.checkpoint_names import CheckpointNames
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.rollout.sampling import forbidden_tokens
from tokbridge_trainer.rollout.tasks import OnFinished, RolloutTask
from tokbridge_trainer.rollout.vllm_arguments import check_ending, engine_arguments, sampling_arguments
from tokbridge_trainer.rollout.vllm_engine import FinishedOutput, VllmEngine
from tokbridge_trainer.rollout.weight_check import Shapes
from tokbridge_trainer.weights import Rendezvous, WeightUpdate


class VllmWriter:
    """The student in a vLLM engine, without adapters: those are merged before they come here.

    The engine starts from the student's config alone; all its weights come from the learner.
    """

    def __init__(
        self,
        config: TrainConfig,
        vocabulary: ByteVocabulary,
        stop_ids: frozenset[int],
        engine: VllmEngine,
        parameters: Shapes,
    ) -> None:
        self._config = config
        self._stop_ids = stop_ids
        self._forbidden_ids = forbidden_ids(vocabulary, stop_ids)
        self._engine = engine
        self._parameters = parameters
        self._version: int | None = None

    @classmethod
    def start(cls, config: TrainConfig, vocabulary: ByteVocabulary, stop_ids: frozenset[int]) -> Self:
        """Start an engine.

        Raises:
            InvalidConfigError: vLLM is not installed, or does not start.
        """
        names = CheckpointNames(config.student.model)
        with TemporaryDirectory() as folder:
            names.write_config(Path(folder))
            engine = VllmEngine(engine_arguments(config, folder), len(forbidden_ids(vocabulary, stop_ids)))
        return cls(config, vocabulary, stop_ids, engine, names.shapes)

    @property
    def parameters(self) -> Shapes:
        """All that a checkpoint of the bare model holds."""
        return self._parameters

    def join_broadcasts(self, rendezvous: Rendezvous, rank: int) -> None:
        """Meet the learner, to be sent weights from GPU to GPU."""
        self._engine.join_broadcasts(rendezvous, rank)

    def load(self, update: WeightUpdate) -> None:
        """Replace the engine's weights."""
        self._engine.replace_weights(update)
        self._version = update.version

    def write(self, tasks: Sequence[RolloutTask], on_finished: OnFinished) -> None:
        """Write one response for each task; a call that fails leaves nothing behind in the engine.

        Raises:
            RolloutFailedError: a response ended neither at a stop token nor at its cap.
        """
        running = {str(number): task for number, task in enumerate(tasks)}
        try:
            for request_id, task in running.items():
                sampling = sampling_arguments(self._config, task.key, self._stop_ids, self._forbidden_ids)
                self._engine.add(request_id, task.prompt.token_ids.tolist(), sampling)
            while self._engine.is_busy:
                for output in self._engine.step():
                    self._check(output)
                    on_finished(running.pop(output.request_id), np.array(output.token_ids, np.int64))
        finally:
            self._engine.abort(list(running))

    def _check(self, output: FinishedOutput) -> None:
        check_ending(output.token_ids, output.finish_reason, self._stop_ids, self._config.max_response_tokens)
        if output.versions != (str(self._version),):
            raise RolloutFailedError(
                f"a response was written by weights {output.versions}, not by version {self._version} alone"
            )


def forbidden_ids(vocabulary: ByteVocabulary, stop_ids: frozenset[int]) -> list[int]:
    """Ids that must not be sampled."""
    return np.flatnonzero(forbidden_tokens(vocabulary, stop_ids)).tolist()
