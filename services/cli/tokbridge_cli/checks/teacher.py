"""All checks of one running teacher, made with the client that a trainer uses: what passes here works there."""

from __future__ import annotations

import time
from collections.abc import Callable

from tokbridge.client import TeacherClient
from tokbridge.client.probe import probe_request
from tokbridge.errors import TokbridgeError
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge_cli.checks.answers import Answer, check_determinism, check_notes, check_overhead, check_rows
from tokbridge_cli.checks.description import (
    check_handshake,
    check_limits,
    check_routing,
    check_stop_tokens,
    check_template,
)
from tokbridge_cli.checks.result import Check, Status

_REPEATS = 3


async def check_teacher(
    client: TeacherClient,
    student: StudentRegistration,
    *,
    needed_tokens: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Check]:
    """All checks; after one that leaves nothing to check, no more.

    Args:
        client: not connected yet.
        student: to be registered.
        needed_tokens: teacher tokens of prompt and response that a run will need at most; None: not known.
        clock: seconds that only grow.
    """
    try:
        teacher = await client.connect(student)
    except TokbridgeError as error:
        return [_failure("handshake", error)]
    checks = [
        check_handshake(teacher),
        check_template(teacher),
        check_stop_tokens(teacher),
        check_limits(teacher, needed_tokens),
        *map(check_routing, client.routing_statistics),
    ]
    request = probe_request(student, teacher, "")
    try:
        answers = [await _score(client, request, clock) for _ in range(_REPEATS)]
    except TokbridgeError as error:
        return [*checks, _failure("scoring", error)]
    return [
        *checks,
        check_rows(request, answers[0].result),
        check_determinism([answer.result for answer in answers]),
        check_overhead(answers),
        check_notes(answers[0].result),
    ]


async def _score(client: TeacherClient, request: ScoreRequest, clock: Callable[[], float]) -> Answer:
    started_s = clock()
    result = await client.score(request)
    return Answer(result, clock() - started_s)


def _failure(name: str, error: TokbridgeError) -> Check:
    return Check(name, Status.FAILED, f"{error.code}: {error.message}", {"code": error.code.value, **error.details})
