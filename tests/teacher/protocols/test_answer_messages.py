"""Rows that do not fit one message go in several: a transport refuses what is larger than it was told."""

import grpc
import numpy as np

from support.requests_for import request_for
from support.served import served_over_grpc
from tokbridge.client import TeacherClient
from tokbridge.targets import TargetRows
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge.wire import decode_rows

MAX_BYTES = 1500


async def answer(target, message) -> list[teacher_pb2.ScoreResponse]:
    async with grpc.aio.insecure_channel(target) as channel:
        return [part async for part in teacher_pb2_grpc.TeacherStub(channel).Score(message)]


async def test_no_message_is_larger_than_the_service_sends(
    built_teacher, student_profile, student_registration, monkeypatch
):
    service = built_teacher.service
    request = request_for(student_profile, top_k=100)
    message = request.to_proto(student_registration.student_id)
    await service.register(lambda: student_registration)
    async with served_over_grpc(service) as target:
        whole = await answer(target, message)
    assert max(part.ByteSize() for part in whole) > 2 * MAX_BYTES
    monkeypatch.setattr(service, "limits", service.limits.model_copy(update={"max_message_bytes": MAX_BYTES}))
    async with served_over_grpc(service, MAX_BYTES) as target:
        split = await answer(target, message)
    assert len(split) > len(whole)
    assert split[-1].trailer.num_rows == request.num_rows
    expected, found = (TargetRows.concatenate([decode_rows(p.rows) for p in parts[:-1]]) for parts in (whole, split))
    assert found.first_row == expected.first_row
    for name in ("cases", "row_offsets", "cell_ids", "cell_log_probs", "residual", "emitted_log_prob"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


async def test_the_client_takes_them_as_one_answer(built_teacher, student_profile, student_registration, monkeypatch):
    service = built_teacher.service
    monkeypatch.setattr(service, "limits", service.limits.model_copy(update={"max_message_bytes": MAX_BYTES}))
    request = request_for(student_profile, top_k=100)
    async with served_over_grpc(service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        assert (await client.score(request)).rows.num_rows == request.num_rows
