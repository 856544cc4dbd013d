"""What a backend is: it runs the teacher model over prompts and responses and hands chunks of targets back.

A backend knows the plan of a response and the device pass (`marginal`), nothing above them: no request, no protocol, no
student. It is called from one worker thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokbridge.errors import InternalError, TokbridgeError
from tokbridge_teacher.routing.device_tables import DeviceTables
from tokbridge_teacher.targets.marginal import ChunkResult
from tokbridge_teacher.targets.plan import ResponsePlan

Steps = Generator[None, None, None]
"""Work that may be put aside after each step: every `next` does one."""

Result = TypeVar("Result")


class BackendLostError(InternalError):
    """The backend will compute nothing any more in this process."""


class DeviceMemoryError(InternalError):
    """A pass was given up because the device has no memory left for it; a smaller one may do."""


def run_to_end(steps: Generator[None, None, Result]) -> Result:
    """Do all steps without a pause and give what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@dataclass(frozen=True, eq=False)
class ScoreJob:
    """One response to score, compared by identity.

    It ends with one effective call of `finish` or `fail`; later ones are ignored.
    """

    prompt_ids: NDArray[np.int32]
    """[L], teacher tokens of the rendered prompt, at least one."""
    plan: ResponsePlan
    tables: DeviceTables
    cancelled: Callable[[], bool]
    """Whether nobody waits for the rest; asked before every piece of work."""
    emit: Callable[[ChunkResult], None]
    """Takes the targets of the next teacher positions, in order."""
    finish: Callable[[int], None]
    """Takes the number of prompt tokens that were computed once for several responses."""
    fail: Callable[[TokbridgeError], None]
    max_chunk_rows: int = sys.maxsize
    """Rows of a chunk of logits that this response may be part of, as its vocabularies leave room for."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and content."""
        return len(self.prompt_ids) + len(self.plan.teacher_ids)


@dataclass(frozen=True)
class BackendDescription:
    """Facts about a loaded model."""

    backend: str
    model: str
    head_size: int
    context_length: int
    dtype: str
    device: str
    in_process: bool = True
    """Whether the model runs in this process; else in workers, which hold the routing tables too."""

    repeat_tolerance: float = 1e-5
    """Largest difference, in nats or probability, between two scorings of one response; more than nothing where a
    cache or another batch rounds activations in other places."""

    @property
    def process_device(self) -> str:
        """The device that this process itself uses."""
        return self.device if self.in_process else "cpu"


@dataclass(frozen=True)
class SelfTestReport:
    """What a backend measured of itself before it may serve."""

    head_error: float
    """Largest difference of a log-prob from the model's own."""
    path_errors: dict[str, float]
    """The same for every faster path, by name."""
    disabled_paths: tuple[str, ...]
    """Paths not used: they differ by more than the tolerance, or would on sequences longer than those tried."""


class Backend(Protocol):
    """The seam between the service and whatever runs the model."""

    def describe(self) -> BackendDescription:
        """Facts about the model, known once it is loaded."""
        ...

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        """Run jobs to their end, a bounded piece of work a step; steps of several calls may alternate.

        What a job is answered does not depend on what runs between its steps. A fault of one response goes to its
        `fail`; what is raised concerns all of them.

        Raises:
            BackendLostError: for good; the service ends.
            Exception: any fault of this pass. After several in a row the service is not ready until one ends well.
        """
        ...

    def score(self, jobs: Sequence[ScoreJob]) -> None:
        """All steps at once."""
        ...

    def close(self) -> None:
        """End what the backend started; nothing runs any more."""
        ...

    def self_test(self) -> SelfTestReport:
        """Compare with the model's own log-probs and switch off what differs; raises `SelfTestFailedError`."""
        ...
