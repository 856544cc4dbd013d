"""What a request is held to take, against what it takes."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from support.gated_teacher import gated_teacher
from support.requests_for import request_for
from support.rows_alike import compare_rows
from tokbridge.errors import LimitExceededError
from tokbridge.modes import Routing, Spanning
from tokbridge.targets import TargetRows
from tokbridge_teacher.backends.base import ScoreJob
from tokbridge_teacher.backends.lm_head import LmHead
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
    if not is_dataclass(value):
        return 0
    return sum(arrays_in(getattr(value, field.name)) for field in fields(value))


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


LONG = "word " * 50


async def rows_of(teacher, student_profile, registration) -> list[TargetRows]:
    """Registers and scores one response."""
    service = teacher.built.service
    await service.register(lambda: registration)
    parts = [part async for part in service.score(registration.student_id, request_for(student_profile, LONG))]
    return [part for part in parts if isinstance(part, TargetRows)]


def row_bytes(teacher, registration) -> int:
    """Of one row of logits and what is folded from it."""
    return 4 * (teacher.built.service.describe().head_size + registration.vocabulary.size + 1)


@pytest.mark.parametrize("rows_that_fit", [1, 5])
async def test_a_chunk_is_cut_to_what_fits_the_device(
    rows_that_fit, teacher_folder, student_registration, student_profile, monkeypatch
):
    seen: list[int] = []
    head = LmHead.__call__

    def counting(self, hidden_Ph):
        seen.append(len(hidden_Ph))
        return head(self, hidden_Ph)

    with gated_teacher(teacher_folder, chunk_rows=64) as teacher:
        expected = await rows_of(teacher, student_profile, student_registration)
        one = row_bytes(teacher, student_registration)
    monkeypatch.setattr(LmHead, "__call__", counting)
    with gated_teacher(teacher_folder, chunk_rows=64, max_chunk_bytes=(rows_that_fit + 1) * one - 1) as teacher:
        seen.clear()
        rows = await rows_of(teacher, student_profile, student_registration)
    assert set(seen[:-1]) == {rows_that_fit}
    compare_rows(TargetRows.concatenate(expected), TargetRows.concatenate(rows))


async def test_a_response_of_which_no_row_fits_the_device_is_refused(
    teacher_folder, student_registration, student_profile
):
    with gated_teacher(teacher_folder) as teacher:
        one = row_bytes(teacher, student_registration)
    with gated_teacher(teacher_folder, max_chunk_bytes=one - 1) as teacher:
        with pytest.raises(LimitExceededError) as refused:
            await rows_of(teacher, student_profile, student_registration)
        assert (refused.value.details["name"], refused.value.details["value"]) == ("max_chunk_bytes", one)
        assert teacher.held() == 0
