"""What a request is held to take, against what it takes."""

from dataclasses import fields

import numpy as np
import pytest

from support.gated_teacher import gated_teacher
from support.requests_for import request_for
from tokbridge.errors import LimitExceededError
from tokbridge.modes import Routing, Spanning
from tokbridge_teacher.backends.base import ScoreJob
from tokbridge_teacher.costs import estimated_cost, measured_cost
from tokbridge_teacher.preparation import RequestPreparer
from tokbridge_teacher.settings import RequestLimits
from tokbridge_teacher.students import Student, pair_compiler
from tokbridge_teacher.targets.marginal import ChunkResult


def arrays_in(value: object) -> int:
    """Bytes of all arrays in a chunk's result."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(arrays_in, value))
    names = [field.name for field in fields(value)] if hasattr(value, "__dataclass_fields__") else []  # type: ignore[arg-type]
    return sum(arrays_in(getattr(value, name)) for name in names)


@pytest.fixture(scope="module")
def teacher(teacher_folder):
    with gated_teacher(teacher_folder, chunk_rows=16) as teacher:
        yield teacher


@pytest.mark.parametrize(
    ("routing", "spanning"), [(Routing.GREEDY, Spanning.REALIZED), (Routing.BPE, Spanning.LOOKAHEAD)]
)
@pytest.mark.parametrize("top_k", [1, 5, 100])
def test_the_rows_of_a_response_are_never_more_than_was_admitted(
    routing, spanning, top_k, teacher, teacher_profile, student_registration, student_profile
):
    preparer = RequestPreparer(teacher_profile, RequestLimits(), 4096)
    student = Student(student_registration, pair_compiler(teacher_profile.vocabulary, None), "cpu")
    text = "she sells sea shells by the sea shore, 東京 and 12 + 30 is 42. " * 5
    request = request_for(student_profile, text, top_k=top_k, routing=routing, spanning=spanning)
    prepared = preparer.prepare(request, student)
    chunks: list[ChunkResult] = []
    job = ScoreJob(
        prompt_ids=prepared.prompt_ids,
        plan=prepared.plan,
        tables=prepared.device_tables,
        cancelled=lambda: False,
        emit=chunks.append,
        finish=lambda _: None,
        fail=lambda error: pytest.fail(str(error)),
    )
    teacher.gate.inner.score([job])
    taken = sum(map(arrays_in, chunks))
    cost = measured_cost(prepared)
    assert chunks
    assert taken <= cost.result_bytes <= 4 * taken + 4096
    assert cost.tokens == len(prepared.prompt_ids) + len(prepared.plan.teacher_ids)


def test_an_estimate_refuses_nothing_for_good(student_profile):
    request = request_for(student_profile, "word " * 300)
    assert estimated_cost(request, 10).tokens == 10
    assert estimated_cost(request, 10**6).tokens > 300


async def test_a_chunk_that_does_not_fit_the_device_is_refused(teacher_folder, student_registration, student_profile):
    with gated_teacher(teacher_folder, chunk_rows=64, max_chunk_bytes=50_000) as teacher:
        service = teacher.built.service
        await service.register(lambda: student_registration)
        short = request_for(student_profile, "a b")
        assert [part async for part in service.score(student_registration.student_id, short)]
        with pytest.raises(LimitExceededError) as refused:
            async for _ in service.score(student_registration.student_id, request_for(student_profile, "word " * 50)):
                pass
        assert refused.value.details["name"] == "max_chunk_bytes"
        assert teacher.held() == 0
