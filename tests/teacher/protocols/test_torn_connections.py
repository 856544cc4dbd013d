"""A connection that ends under an answer, before grpc.aio has cancelled the call: no fault of ours, nothing to log."""

import asyncio
from typing import cast

import grpc
import pytest

from support.requests_for import request_for
from tokbridge.errors import DeadlineExceededError
from tokbridge_teacher.protocols.grpc_errors import Context, refuse_call
from tokbridge_teacher.protocols.grpc_servicer import TeacherServicer
from tokbridge_teacher.upload_budget import UploadBudget


class TornContext:
    """Raises on every word what grpc.aio raises when the core cannot send any more."""

    def __init__(self):
        self.statuses = []

    def invocation_metadata(self):
        return ()

    def set_trailing_metadata(self, metadata):
        pass

    def time_remaining(self):
        return None

    async def write(self, message):
        raise grpc.aio.InternalError("Failed to execute the batch")

    async def abort(self, status, message, trailing_metadata):
        self.statuses.append((status, message))
        raise grpc.aio.InternalError("Failed to execute the batch")


async def test_a_status_that_nobody_can_be_sent_ends_the_call_quietly():
    with pytest.raises(asyncio.CancelledError):
        await refuse_call(cast(Context, TornContext()), DeadlineExceededError("too late"), "test-request")


async def test_rows_that_nobody_can_be_sent_count_as_cancelled(
    built_teacher, student_profile, student_registration, caplog
):
    service, context = built_teacher.service, TornContext()
    await service.register(lambda: student_registration)
    message = request_for(student_profile).to_proto(student_registration.student_id)
    with pytest.raises(asyncio.CancelledError):
        await TeacherServicer(service, UploadBudget(1)).Score(message, cast(Context, context))
    assert not context.statuses
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
