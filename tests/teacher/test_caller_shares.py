"""Two callers at one service: the one that floods neither shuts the other out nor goes before it."""

import asyncio
from collections import Counter

from support.gated_teacher import becomes, gated_teacher
from support.requests_for import request_for
from tokbridge.errors import OverloadedError
from tokbridge_teacher.callers import Caller

PLACES = 20
FLOODERS_PART = 16
"""20 places for a caller alone beside a newcomer's weight of 0.25."""


async def test_a_flood_leaves_another_caller_its_places_and_its_turn(
    teacher_folder, student_registration, student_profile
):
    with gated_teacher(teacher_folder, max_requests=PLACES, batch_tokens=128, chunk_rows=64) as teacher:
        service, scheduler = teacher.built.service, teacher.built.scheduler
        finished: list[str] = []
        await service.register(lambda: student_registration)

        async def score(name: str, number: int) -> None:
            # A prompt of its own each, so that nobody rides along in another's batch.
            messages = [{"role": "user", "content": f"question {number} of {name}"}]
            request = request_for(student_profile, "shells by the sea", messages=messages)
            async for _ in service.score(student_registration.student_id, request, Caller(name)):
                pass
            finished.append(name)

        def in_scheduler() -> int:
            state = scheduler.state()
            return state.queued_requests + state.running_requests

        teacher.gate.open.clear()
        flood = [asyncio.ensure_future(score("flooder", number)) for number in range(2 * PLACES)]
        assert await becomes(lambda: in_scheduler() == FLOODERS_PART)
        refused = [task.exception() for task in flood if task.done()]
        assert len(refused) == 2 * PLACES - FLOODERS_PART
        assert all(isinstance(error, OverloadedError) for error in refused)
        other = [asyncio.ensure_future(score("other", number)) for number in range(3)]
        assert await becomes(lambda: in_scheduler() == FLOODERS_PART + 3)
        teacher.gate.open.set()
        await asyncio.gather(*other)
        # Its three came after what was under way, in turn with as many of the flood: about a batch of each.
        assert finished.count("flooder") < FLOODERS_PART - 4
        await asyncio.gather(*flood, return_exceptions=True)
        assert Counter(finished) == {"flooder": FLOODERS_PART, "other": 3}
