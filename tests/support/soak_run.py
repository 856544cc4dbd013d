"""Two replicas, everything that calls them at once, and the kills."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from support.api_keys import KEY_FILE, LARGE_KEY, SMALL_KEY
from support.scrapes import sum_of_series
from support.soak_callers import Call, SoakCaller, call_until
from support.soak_hostile import HostileThread
from support.soak_pool import Pool, build_pool
from support.soak_replicas import SoakReplica, free_ports
from support.soak_tally import Tally
from support.soak_watch import HELD, Watch, scrape
from tokbridge.client import ClientCredentials, StudentRegistration, TeacherClient
from tokbridge.tokenizer_profile import TokenizerProfile

READ_TIMEOUT_S = 4.0
OPTIONS = (
    *("--batch-tokens", "1024", "--chunk-rows", "32", "--piece-tokens", "256"),
    *("--max-requests", "24", "--max-students", "4"),
    *("--read-timeout-s", str(READ_TIMEOUT_S), "--shutdown-grace-s", "5", "--log-level", "error"),
)
LONGEST_DOWN_S = 4.0
SETTLE_S = 60


class Soak:
    """Replicas `hit`, which is killed and stopped in turn, and `spared`, which lives through it all."""

    def __init__(self, folder: Path, model: Path, *, seed: str, hit_every_s: float) -> None:
        """Nothing runs yet."""
        (folder / "keys").write_text(KEY_FILE)
        options = (*OPTIONS, f"--api-keys-file={folder / 'keys'}")
        ports = free_ports(4)
        self.hit = SoakReplica("hit", model, folder, ports[:2], options)
        self.spared = SoakReplica("spared", model, folder, ports[2:], options)
        self.tally = Tally()
        self.watch = Watch(self.spared, self.hit, self.tally)
        self._seed = seed
        self._hit_every_s = hit_every_s
        self._pools: list[Pool] = []
        self._quiet = threading.Event()

    async def prepare(self, profiles: Sequence[TokenizerProfile]) -> tuple[SoakCaller, SoakCaller]:
        """Start both replicas, score all requests while nothing else goes on, and connect the two callers.

        `profiles`: of the student that calls all the time, and of one that comes anew each time.
        """
        await asyncio.gather(*(asyncio.to_thread(replica.start) for replica in (self.hit, self.spared)))
        for profile in profiles:
            student = StudentRegistration.from_profile(profile)
            async with TeacherClient(self.spared.grpc, credentials=ClientCredentials(api_key=LARGE_KEY)) as client:
                await client.connect(student)
                self._pools.append(await build_pool(client, profile, student))
        large, small = (self._caller(key, self._pools[0]) for key in (LARGE_KEY, SMALL_KEY))
        for caller in (large, small):
            await caller.open()
        return large, small

    async def load(self, large: SoakCaller, small: SoakCaller, profile: TokenizerProfile, seconds: float) -> None:
        """Everything at once, and then silence. `profile`: of the first student."""
        end_s = time.monotonic() + seconds
        hostile = [self._hostile(profile, number) for number in range(3)]
        observers = (self.disturb, self.watch.read_until, self.watch.feel_the_pulse)
        try:
            for thread in hostile:
                thread.start()
            async with asyncio.TaskGroup() as group:
                for observe in observers:
                    group.create_task(observe(end_s))
                for number, (caller, call, pause_s) in enumerate(self._plan(large, small)):
                    group.create_task(call_until(end_s, caller, call, f"{self._seed} {number}", pause_s))
        finally:
            self._quiet.set()
            for thread in hostile:
                await asyncio.to_thread(thread.join)

    async def disturb(self, end_s: float) -> None:
        """SIGTERM and SIGKILL in turn, and a new process in the old one's place."""
        random, numbers = Random(self._seed), (signal.SIGKILL, signal.SIGTERM)
        while await self._rest(self._hit_every_s * random.uniform(0.8, 1.2), end_s):
            await asyncio.to_thread(self.hit.hit, numbers[self.hit.life % 2])
            await asyncio.sleep(random.uniform(0.0, LONGEST_DOWN_S))
            await asyncio.to_thread(self.hit.start)

    async def held(self) -> dict[str, dict[str, float]]:
        """What the replicas hold though nobody calls, after a bounded wait; empty is how it should be."""
        held: dict[str, dict[str, float]] = {}
        for _ in range(SETTLE_S):
            for replica in (self.hit, self.spared):
                text = await asyncio.to_thread(scrape, replica)
                held[replica.name] = {name: value for name in HELD if (value := sum_of_series(text, name))}
            if not any(held.values()):
                return {}
            await asyncio.sleep(1.0)
        return held

    def end(self) -> None:
        """Leave nothing running."""
        self.hit.end()
        self.spared.end()

    def _plan(self, large: SoakCaller, small: SoakCaller) -> list[tuple[SoakCaller, Call, float]]:
        """Caller, kind of call, mean pause between calls in seconds; all at once."""
        newcomer = self._caller(SMALL_KEY, self._pools[1])
        return [
            *[(large, SoakCaller.score, 0.02)] * 3,
            *[(large, SoakCaller.stream, 0.05)] * 2,
            *[(large, SoakCaller.cancel, 0.1)] * 2,
            (large, SoakCaller.hurry, 0.1),
            (large, SoakCaller.stall, 0.5),
            (small, SoakCaller.score, 0.05),
            (small, SoakCaller.stream, 0.1),
            (small, SoakCaller.hurry, 0.2),
            (small, SoakCaller.stall, 1.0),
            (small, SoakCaller.clog, 1.0),
            (small, SoakCaller.mistake, 0.2),
            (newcomer, SoakCaller.arrive, 5.0),
        ]

    def _caller(self, key: str, pool: Pool) -> SoakCaller:
        addresses = [self.hit.grpc, self.spared.grpc]
        return SoakCaller(addresses, ClientCredentials(api_key=key), pool, self.tally, stalled_s=READ_TIMEOUT_S)

    def _hostile(self, profile: TokenizerProfile, number: int) -> HostileThread:
        """One for the replica that is hit, the others for the one that is spared."""
        replica, pause_s = (self.hit, 0.1) if number == 0 else (self.spared, 0.05)
        name = f"hostile {number} to {replica.name}, seed {self._seed}"
        return HostileThread(replica, profile, self._pools[0].student, self.tally, self._quiet, pause_s, name)

    async def _rest(self, seconds: float, end_s: float) -> bool:
        """Sleep; whether there is time left."""
        await asyncio.sleep(max(0.0, min(seconds, end_s - time.monotonic())))
        return time.monotonic() < end_s and not self.tally.broken
