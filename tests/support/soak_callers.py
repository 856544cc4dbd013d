"""Callers of a soak that go through the client: patient, hurried, cancelling, reading slowly, mistaken, new.

Whatever comes back is either complete, and then compared with the rows of an undisturbed call, or a typed error. One
replica is always there, so that a caller with patience gets its rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from random import Random

import grpc
import grpc.aio

from support.rows_alike import compare_rows
from support.soak_pool import Pool, Scored
from support.soak_tally import Tally
from tokbridge.client import BreakerPolicy, ClientCredentials, RetryPolicy, TeacherClient
from tokbridge.client.score_stream import ScoreStream
from tokbridge.client.silence import Silence
from tokbridge.errors import TokbridgeError
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2_grpc

PATIENCE_S = 150.0
HANG_S = 60.0
"""After its deadline a call must have ended within so long, on however busy a machine."""

IMPATIENT = frozenset({"deadline_exceeded"})
"""What a caller that does not wait, or does not read, may meet."""
FORGOTTEN = frozenset({"unknown_student"})
"""What a call meets whose student is pushed out again and again: students beyond `max_students` keep registering."""

_SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]

Call = Callable[["SoakCaller", Random], Awaitable[None]]


@dataclass
class SoakCaller:
    """One API key's clients over all replicas, and the calls it makes."""

    addresses: Sequence[str]
    credentials: ClientCredentials
    pool: Pool
    tally: Tally
    stalled_s: float
    """How long a caller that stops reading takes none of its rows."""

    def client(self, timeout_s: float) -> TeacherClient:
        """Comes back to a replica soon, since the replicas here do."""
        return TeacherClient(
            self.addresses,
            timeout_s=timeout_s,
            connect_timeout_s=PATIENCE_S,
            credentials=self.credentials,
            retry=RetryPolicy(max_backoff_s=5.0),
            breaker=BreakerPolicy(max_open_s=5.0),
        )

    async def open(self) -> None:
        """Connect."""
        self.patient, self.hurried = self.client(PATIENCE_S), [self.client(0.03), self.client(0.4)]
        for client in (self.patient, *self.hurried):
            await client.connect(self.pool.student)

    async def close(self) -> None:
        for client in (self.patient, *self.hurried):
            await client.close()

    async def score(self, random: Random) -> None:
        """A whole response."""
        wanted = self.pool.draw(random)

        async def call() -> TargetRows:
            return (await self.patient.score(wanted.request)).rows

        await self._expect("score", wanted, call, FORGOTTEN)

    async def stream(self, random: Random) -> None:
        """A response read row by row."""
        wanted = self.pool.draw(random)

        async def call() -> TargetRows:
            return TargetRows.concatenate([rows async for rows in self.patient.stream(wanted.request)])

        await self._expect("stream", wanted, call, FORGOTTEN)

    async def stall(self, random: Random) -> None:
        """A large response whose caller stops reading for a while, or for good."""
        wanted, returns = self.pool.long[0], random.random() < 0.5

        async def call() -> TargetRows | None:
            async with aclosing(self.patient.stream(wanted.request)) as parts:
                read = [await anext(parts)]
                await asyncio.sleep(random.uniform(0.2, 1.5) * self.stalled_s)
                if not returns:
                    return None
                read += [rows async for rows in parts]
            return TargetRows.concatenate(read)

        await self._expect("stall", wanted, call, IMPATIENT | FORGOTTEN)

    async def clog(self, random: Random) -> None:
        """As `stall`, below the client and with so small a window that the service cannot get rid of the rows."""
        wanted = self.pool.long[0]
        message = wanted.request.to_proto(self.pool.student.student_id)

        async def call() -> TargetRows | None:
            async with grpc.aio.insecure_channel(self.addresses[-1], options=_SMALL_WINDOW) as channel:
                answers = teacher_pb2_grpc.TeacherStub(channel).Score(message, metadata=self.credentials.metadata)
                stream = ScoreStream(
                    answers, wanted.request.num_rows, self.pool.student.vocabulary.size, Silence(time.monotonic)
                )
                async with aclosing(stream.rows()) as parts:
                    read = [await anext(parts)]
                    await asyncio.sleep(random.uniform(0.2, 3.0) * self.stalled_s)
                    read += [rows async for rows in parts]
            return TargetRows.concatenate(read)

        await self._expect("clog", wanted, call, IMPATIENT | FORGOTTEN | {"overloaded"})

    async def cancel(self, random: Random) -> None:
        """A response whose caller goes away, sometimes too late."""
        wanted = self.pool.draw(random)

        async def call() -> TargetRows | None:
            task = asyncio.ensure_future(self.patient.score(wanted.request))
            done, _ = await asyncio.wait([task], timeout=random.choice((0.0, 0.002, 0.05, 0.5)))
            if not done:
                task.cancel()
                await asyncio.wait([task])
            return None if task.cancelled() else task.result().rows

        await self._expect("cancel", wanted, call, FORGOTTEN)

    async def hurry(self, random: Random) -> None:
        """A response with a deadline that may be too short."""
        wanted, client = self.pool.draw(random), random.choice(self.hurried)

        async def call() -> TargetRows:
            return (await client.score(wanted.request)).rows

        await self._expect("hurry", wanted, call, IMPATIENT | FORGOTTEN)

    async def mistake(self, random: Random) -> None:
        """A request that no service takes."""
        wrong = random.choice(self.pool.wrong)

        async def call() -> TargetRows:
            return (await self.patient.score(wrong.request)).rows

        await self._expect("mistake", None, call, FORGOTTEN | {wrong.code.value})

    async def arrive(self, random: Random) -> None:
        """A student's first call: handshake, registration, probe, a response."""
        wanted = random.choice(self.pool.short)

        async def call() -> TargetRows:
            async with self.client(PATIENCE_S) as client:
                await client.connect(self.pool.student)
                return (await client.score(wanted.request)).rows

        await self._expect("arrive", wanted, call, FORGOTTEN)

    async def _expect(
        self,
        kind: str,
        wanted: Scored | None,
        call: Callable[[], Awaitable[TargetRows | None]],
        errors: frozenset[str],
    ) -> None:
        """Count what comes of a call; what is neither right rows nor one of `errors` is a failure."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE_S + HANG_S):
                rows = await call()
        except TokbridgeError as error:
            outcome = error.code.value
            if outcome not in errors:
                self.tally.fail(f"{kind}: {outcome}: {error.message} {error.details}, after {error.__cause__!r}")
        except TimeoutError:
            outcome = "hang"
            self.tally.fail(f"{kind}: no end after {PATIENCE_S + HANG_S:g} s")
        else:
            outcome = "given up" if rows is None else "complete"
            if rows is not None:
                outcome = self._checked(kind, wanted, rows)
        self.tally.count(kind, outcome, time.monotonic() - began_s)

    def _checked(self, kind: str, wanted: Scored | None, rows: TargetRows) -> str:
        if wanted is None:
            self.tally.fail(f"{kind}: rows for a request that is wrong")
            return "wrong"
        try:
            assert rows.num_rows == wanted.request.num_rows, f"{rows.num_rows} of {wanted.request.num_rows} rows"
            self.tally.differ(compare_rows(wanted.rows, rows))
        except AssertionError as error:
            self.tally.fail(f"{kind}: wrong rows: {error}")
            return "wrong"
        return "complete"


async def call_until(end_s: float, caller: SoakCaller, call: Call, seed: str, pause_s: float) -> None:
    """Calls of one kind, one after the other, with pauses of `pause_s` on average."""
    random = Random(seed)
    while time.monotonic() < end_s and not caller.tally.broken:
        await call(caller, random)
        await asyncio.sleep(random.uniform(0.0, 2.0) * pause_s)
