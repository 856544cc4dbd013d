"""What a service has its work done by, and what it holds itself to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tokbridge.targets import TargetRows
from tokbridge_teacher.admission import Admission, Cost, Lease
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.fair_pool import FairPool
from tokbridge_teacher.scheduling import Scheduler
from tokbridge_teacher.targets.assembly import RowAssembler
from tokbridge_teacher.targets.marginal import ChunkResult

Result = TypeVar("Result")


@dataclass(frozen=True)
class Workers:
    """Threads, the queue in front of the model, and the two doors."""

    scheduler: Scheduler
    preparers: FairPool
    """Of score requests."""
    registrars: FairPool
    """Of registrations: pairing a large vocabulary takes seconds to minutes, and no score request waits for it."""
    assemblers: Executor
    """Turns chunks into rows; at most one call a request waits here."""
    admission: Admission
    """Of score requests."""
    registrations: Admission
    """Of registrations."""

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: no request waits, runs or has rows left for its caller."""
        return not (self.admission.held().requests or self.registrations.held().requests)

    async def prepare(self, caller: Caller, num_tokens: int, call: Callable[[], Result]) -> Result:
        """Have the preparation of a score request run in its caller's turn; cancelling takes it out of the queue."""
        return await asyncio.wrap_future(self.preparers.submit(caller, num_tokens, call))

    async def register(self, caller: Caller, call: Callable[[], Result]) -> Result:
        """Have a part of a registration run in its caller's turn; cancelling takes it out of the queue."""
        return await asyncio.wrap_future(self.registrars.submit(caller, 1, call))

    async def assemble(self, assembler: RowAssembler, chunk: ChunkResult) -> TargetRows:
        """The rows that `chunk` completes."""
        return await asyncio.get_running_loop().run_in_executor(self.assemblers, assembler.add, chunk)


@dataclass(frozen=True)
class ServiceBounds:
    """Sizes a single request is held to, beside `RequestLimits`."""

    max_tokens_in_flight: int
    max_chunk_bytes: int
    """Device memory of one chunk of logits."""
    read_timeout_s: float
    """How long rows are kept for a caller that takes none."""


@contextmanager
def leased(admission: Admission, caller: Caller, cost: Cost) -> Iterator[Lease]:
    """Hold a lease for the length of a block.

    Raises:
        LimitExceededError, OverloadedError: as `Admission.admit`.
    """
    lease = admission.admit(caller, cost)
    try:
        yield lease
    finally:
        admission.release(lease)
