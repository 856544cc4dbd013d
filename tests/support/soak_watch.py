"""What is seen of the processes of a soak while it goes on: memory, threads, files, and how late the callers are."""

from __future__ import annotations

import asyncio
import os
import time

import httpx

from support.api_keys import LARGE_KEY, bearer
from support.process_gauges import Growth, read_process
from support.scrapes import sum_of_series
from support.soak_replicas import SoakReplica
from support.soak_tally import Tally

READ_EVERY_S = 5.0
_SAY_EVERY_READINGS = 12
_PULSE_S = 0.05

HELD = (
    "tokbridge_admitted_requests",
    "tokbridge_admitted_tokens",
    "tokbridge_admitted_result_bytes",
    "tokbridge_queue_requests",
    "tokbridge_queue_tokens",
    "tokbridge_running_requests",
    "tokbridge_running_tokens",
    "tokbridge_prepare_waiting",
)
"""Gauges that are 0 when nobody calls."""


def scrape(replica: SoakReplica) -> str:
    """Its metrics."""
    answer = httpx.get(f"{replica.http}/metrics", headers=dict(bearer(LARGE_KEY)), timeout=150)
    assert answer.status_code == 200, answer.text
    return answer.text


class Watch:
    """Readings of a replica that lives all the time, of one that is hit, and of the callers' own process."""

    def __init__(self, spared: SoakReplica, hit: SoakReplica, tally: Tally) -> None:
        self._spared = spared
        self._hit = hit
        self._tally = tally
        self.growth = {"spared": Growth(), "callers": Growth()}
        """By replica and, of the one that is hit, by life."""
        self.longest_pause_s = 0.0
        """For which the callers' event loop did not run, and their calls took longer than the service did."""

    async def read_until(self, end_s: float) -> None:
        """Readings, regularly; a service that ends by itself is a failure."""
        own = self.growth["callers"].readings
        while time.monotonic() < end_s and not self._tally.broken:
            for replica in (self._hit, self._spared):
                if replica.crashed:
                    self._tally.fail(f"{replica.name} ended by itself: {replica.logs()[-2000:]}")
                elif replica.up:
                    await asyncio.to_thread(self._read, replica)
            own.append(read_process(os.getpid(), at_s=time.monotonic(), calls=self._tally.calls))
            if len(own) % _SAY_EVERY_READINGS == 0:
                self._say(end_s)
            await asyncio.sleep(READ_EVERY_S)

    async def feel_the_pulse(self, end_s: float) -> None:
        """How long the callers themselves are held up."""
        while (began_s := time.monotonic()) < end_s:
            await asyncio.sleep(_PULSE_S)
            self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began_s - _PULSE_S)

    def _read(self, replica: SoakReplica) -> None:
        life, name = replica.life, replica.name
        try:
            calls = sum_of_series(scrape(replica), "tokbridge_requests_total")
            reading = read_process(replica.pid, at_s=time.monotonic(), calls=calls)
        except (httpx.HTTPError, AssertionError, OSError) as failure:
            if replica.up and replica.life == life:
                self._tally.fail(f"cannot look into {name}: {failure!r}")
            return
        self.growth.setdefault(name if replica is self._spared else f"{name} {life}", Growth()).readings.append(reading)

    def _say(self, end_s: float) -> None:
        last = self.growth["spared"].readings[-1]
        print(
            f"{end_s - time.monotonic():.0f} s left: {self._tally.calls} calls, {dict(self._hit.exits)}; spared: "
            f"{last.resident_bytes >> 20} MiB, {last.threads} threads, {last.files} files",
            flush=True,
        )
