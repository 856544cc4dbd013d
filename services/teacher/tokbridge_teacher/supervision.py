"""Looks after the model of a running service: tells the health service whether requests are taken, asks a model that
fails again, and ends when it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tokbridge.errors import TokbridgeError
from tokbridge_teacher.building import BuiltService
from tokbridge_teacher.model_health import ModelState
from tokbridge_teacher.readiness import SelfTestResponse
from tokbridge_teacher.scheduling import Scheduler

LOOK_S = 0.2
"""How often the state is looked at."""
ASK_S = 5.0
"""How often a failing model is asked at most."""

_log = logging.getLogger(__name__)


class ModelProbe:
    """Has a failing model score the response of the self-test, one at a time; how the pass ends tells the rest."""

    def __init__(self, scheduler: Scheduler, response: SelfTestResponse) -> None:
        self._scheduler = scheduler
        self._response = response
        self._pending = False
        self._asked_s = float("-inf")

    def ask(self, now_s: float) -> None:
        """Ask, unless it was asked a moment ago or has not answered yet."""
        if self._pending or now_s - self._asked_s < ASK_S:
            return
        self._pending, self._asked_s = True, now_s
        job = self._response.job(emit=lambda _: None, finish=lambda _: self._answered(), fail=self._failed)
        self._scheduler.submit(job, on_start=lambda: None)

    def _answered(self) -> None:
        _log.info("the model computes again")
        self._pending = False

    def _failed(self, error: TokbridgeError) -> None:
        _log.error("the model still fails: %s", error.message)
        self._pending = False


async def supervise(
    built: BuiltService, set_serving: Callable[[bool], None], clock: Callable[[], float] = time.monotonic
) -> None:
    """Until the model is lost; cancel it when the service stops.

    Args:
        built: what is looked after.
        set_serving: told whether requests are taken, whenever that changes.
        clock: seconds that only grow.
    """
    probe = ModelProbe(built.scheduler, built.self_test_response)
    told: bool | None = None
    while built.health.state is not ModelState.LOST:
        ready = built.service.ready
        if ready is not told:
            set_serving(ready)
            told = ready
        if built.health.state is ModelState.FAILS:
            probe.ask(clock())
        await asyncio.sleep(LOOK_S)
