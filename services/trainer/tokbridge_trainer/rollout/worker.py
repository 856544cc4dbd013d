"""A rollout worker: holds one copy of the student and writes responses with it.

It knows prompts and samples, not who scores them: finished samples go to a sink, one by one, with the policy version
that wrote them. In a run it lives in a Ray actor; nothing here depends on that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.rollout.policy_gate import PolicyGate
from tokbridge_trainer.rollout.tasks import RolloutReport, RolloutTask, Sink, Writer
from tokbridge_trainer.rollout.transformers_writer import TransformersWriter
from tokbridge_trainer.rollout.vllm_writer import VllmWriter
from tokbridge_trainer.rollout.weight_check import check_whole
from tokbridge_trainer.samples import Sample, split_at_stop
from tokbridge_trainer.weights import Rendezvous, WeightUpdate


class RolloutWorker:
    """Writes responses; each one goes to the sink the moment it is finished."""

    def __init__(
        self,
        config: TrainConfig,
        vocabulary: ByteVocabulary,
        stop_ids: frozenset[int],
        sink: Sink,
        writer: Writer | None = None,
    ) -> None:
        """Load the student into the configured engine, or take a writer that holds it already."""
        start = VllmWriter.start if config.rollout.backend == "vllm" else TransformersWriter
        self._writer: Writer = writer or start(config, vocabulary, stop_ids)
        self._vocabulary = vocabulary
        self._stop_ids = stop_ids
        self._sink = sink
        self._gate = PolicyGate()

    def join_broadcasts(self, rendezvous: Rendezvous, rank: int) -> None:
        """Meet the learner, to be sent weights from GPU to GPU; `rank` is that of the engine's first rank."""
        assert isinstance(self._writer, VllmWriter), "the configuration has NCCL for vLLM only"
        self._writer.join_broadcasts(rendezvous, rank)

    def set_weights(self, update: WeightUpdate) -> None:
        """Take the weights of a policy version; samples written from now on carry it.

        The update is checked as a whole before any of it is applied. After one that failed, `write` refuses until a
        whole one has come.

        Raises:
            IncompleteWeightsError: parameters are missing, unknown or of another shape.
        """
        with self._gate.replacing(update.version):
            check_whole(update, self._writer.parameters)
            self._writer.load(update)

    def write(self, tasks: Sequence[RolloutTask]) -> RolloutReport:
        """Write one response for each task.

        Raises:
            IncompleteWeightsError: the last weight update was not applied as a whole.
        """
        version = self._gate.version
        start = time.monotonic()
        lengths: list[int] = []

        def on_finished(task: RolloutTask, generated: NDArray[np.int64]) -> None:
            sample = self._sample(task, generated, version)
            lengths.append(sample.num_response_tokens)
            self._sink(sample)

        self._writer.write(tasks, on_finished)
        return RolloutReport(time.monotonic() - start, len(tasks), sum(lengths), version)

    def _sample(self, task: RolloutTask, generated: NDArray[np.int64], version: int) -> Sample:
        content_ids, stop_id = split_at_stop(generated, self._stop_ids)
        return Sample(
            key=task.key,
            prompt=task.prompt,
            policy_version=version,
            token_ids=content_ids,
            response=self._vocabulary.content_of(content_ids),
            stop_id=stop_id,
        )
