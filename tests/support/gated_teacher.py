"""A tiny teacher service whose model goes a step only while a gate is open, so that tests decide when it works."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from support.scrapes import sum_of_series
from tokbridge.tokenizer_profile import load_tokenizer
from tokbridge_teacher.backends.base import Backend, ScoreJob, Steps
from tokbridge_teacher.building import BuiltService, build_checked_service, load_backend
from tokbridge_teacher.settings import ServeSettings

WAIT_S = 30.0


async def becomes(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true within the bound."""
    until = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < until:
        await asyncio.sleep(0.005)
    return condition()


@dataclass
class Gate:
    """Wraps a backend; closed, it holds the worker before its next step."""

    inner: Backend
    open: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)
    """Set as soon as a step waits or runs."""
    jobs: list[ScoreJob] = field(default_factory=list)
    """All that were begun."""
    fault: Exception | None = None
    """What every pass ends by at its first step, if anything."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def steps(self, jobs: Sequence[ScoreJob]) -> Steps:
        self.jobs += jobs
        steps = self.inner.steps(jobs)
        while True:
            self.entered.set()
            assert self.open.wait(WAIT_S)
            if self.fault is not None:
                raise self.fault
            try:
                next(steps)
            except StopIteration:
                return
            yield


@dataclass
class GatedTeacher:
    """A built service and its gate."""

    built: BuiltService
    gate: Gate

    def held(self) -> int:
        """Requests that hold a lease."""
        return self.built.workers.admission.held().requests

    def metric(self, series: str) -> float:
        """Sum of the samples of `/metrics` that `name{label="value"}` selects; labels left out may be anything."""
        return sum_of_series(self.built.service.metrics.render().decode(), series)


@contextmanager
def gated_teacher(folder: Path, **settings: Any) -> Iterator[GatedTeacher]:
    """A service over the tiny model in `folder`, its gate open; ended with the block."""
    serve_settings = ServeSettings(model=str(folder), **settings)
    backend = load_backend(serve_settings)
    self_test = backend.self_test()
    gate = Gate(backend)
    gate.open.set()
    profile = load_tokenizer(str(folder), backend.describe().head_size)
    built = build_checked_service(serve_settings, cast(Backend, gate), profile, self_test)
    gate.jobs.clear()
    gate.entered.clear()
    try:
        yield GatedTeacher(built, gate)
    finally:
        gate.open.set()
        built.stop(grace_s=5)
        built.close()
