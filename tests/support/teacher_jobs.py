"""Jobs without a model for tests of the scheduler: a size, a prompt, and what became of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tokbridge.errors import TokbridgeError
from tokbridge_teacher.backends.base import ScoreJob


@dataclass
class Outcome:
    """What became of one job."""

    done: threading.Event = field(default_factory=threading.Event)
    errors: list[TokbridgeError] = field(default_factory=list)
    closed: bool = False

    def finish(self, shared_prompt_tokens: int) -> None:
        self.done.set()

    def fail(self, error: TokbridgeError) -> None:
        self.errors.append(error)
        self.closed = True
        self.done.set()


def job(tokens: int, outcome: Outcome | None = None, prompt: int = 0) -> ScoreJob:
    outcome = outcome or Outcome()
    return ScoreJob(
        prompt_ids=np.full(1, prompt, np.int32),
        plan=cast(Any, SimpleNamespace(teacher_ids=np.zeros(tokens - 1, np.int64))),
        tables=cast(Any, None),
        cancelled=lambda: outcome.closed,
        emit=lambda _: None,
        finish=outcome.finish,
        fail=outcome.fail,
    )
