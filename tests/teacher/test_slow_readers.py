"""A caller that reads slowly holds back its own stream: neither the model, nor others, nor memory without bound."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from support.gated_teacher import GatedTeacher, becomes, gated_teacher
from support.requests_for import request_for
from support.served import served_over_grpc
from tokbridge import wire
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import DeadlineExceededError, OverloadedError
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.protocols import grpc_servicer

ROOM_BYTES = 12 << 20
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
"""A client that asks for no more than 64 KiB ahead of what it has read."""
LONG = "six " * 400


@asynccontextmanager
async def connected(teacher: GatedTeacher, registration, **options):
    async with (
        served_over_grpc(teacher.built.service, 1 << 24, **options) as target,
        grpc.aio.insecure_channel(target, options=SMALL_WINDOW) as channel,
    ):
        stub = teacher_pb2_grpc.TeacherStub(channel)
        await stub.RegisterStudent(iter(registration.to_messages()))
        yield stub


def error_in(error: grpc.aio.AioRpcError):
    return error_of(teacher_pb2.ErrorDetail.FromString(dict(error.trailing_metadata())[ERROR_TRAILER_KEY]))


async def test_a_client_that_does_not_read_delays_nobody_and_holds_a_bounded_part(
    teacher_folder, student_registration, student_profile
):
    long = request_for(student_profile, LONG, top_k=400).to_proto(student_registration.student_id)
    short = request_for(student_profile).to_proto(student_registration.student_id)
    with gated_teacher(teacher_folder, max_result_bytes=ROOM_BYTES, chunk_rows=32) as teacher:
        held = teacher.built.workers.admission.held
        async with connected(teacher, student_registration) as stub:
            slow = [stub.Score(long)]
            assert await becomes(lambda: held().result_bytes > 0)
            one = held().result_bytes
            assert 1 << 21 < one < ROOM_BYTES // 2, "far more than the connection takes ahead, and two find room"
            slow.append(stub.Score(long))
            assert await becomes(lambda: held().result_bytes == 2 * one)
            # The model goes on to the end of what nobody reads, and is free.
            assert await becomes(lambda: len(teacher.gate.jobs) == 2)
            assert await becomes(lambda: teacher.built.scheduler.state().running_requests == 0)
            # Nothing more is admitted than fits, and what fits is served while nobody reads the others.
            while held().result_bytes + one <= ROOM_BYTES:
                slow.append(stub.Score(long))
                assert await becomes(lambda: held().result_bytes == len(slow) * one)
                assert await becomes(lambda: teacher.built.scheduler.state().running_requests == 0)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Score(long).read()
            error = error_in(refused.value)
            assert isinstance(error, OverloadedError)
            assert error.details["name"] == "max_result_bytes"
            for _ in range(5):
                *_, last = [part async for part in stub.Score(short)]
                assert last.HasField("trailer")
            assert held().requests == len(slow), "a stream that is not read keeps its place until it is"
            for call in slow:
                *parts, last = [part async for part in call]
                checksum = 0
                for part in parts:
                    checksum = wire.checksum(part.rows, checksum)
                assert last.trailer.checksum == checksum
                assert last.trailer.num_rows == len(long.token_ids) // 4 + 1
            assert await becomes(lambda: held().requests == 0)


async def test_a_client_that_never_reads_loses_its_place(teacher_folder, student_registration, student_profile):
    long = request_for(student_profile, LONG, top_k=400).to_proto(student_registration.student_id)
    with gated_teacher(teacher_folder, read_timeout_s=0.3, chunk_rows=32) as teacher:
        async with connected(teacher, student_registration) as stub:
            call = stub.Score(long)
            assert await becomes(lambda: teacher.held() == 1)
            assert await becomes(lambda: teacher.held() == 0)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                async for _ in call:
                    pass
            assert isinstance(error_in(raised.value), DeadlineExceededError)
        assert teacher.metric('tokbridge_cancellations_total{reason="slow_reader"}') == 1


async def test_the_call_of_a_client_that_never_reads_ends_and_its_place_is_free(
    teacher_folder, student_registration, student_profile, monkeypatch
):
    """The place among all calls, which would else be kept for as long as the client keeps its connection."""
    monkeypatch.setattr(grpc_servicer, "LAST_WORDS_S", 0.1)
    long = request_for(student_profile, LONG, top_k=400).to_proto(student_registration.student_id)
    with gated_teacher(teacher_folder, read_timeout_s=0.3, chunk_rows=32) as teacher:
        async with connected(teacher, student_registration, max_calls=2, read_timeout_s=0.3) as stub:

            async def is_known() -> bool:
                try:
                    await stub.GetTeacher(teacher_pb2.GetTeacherRequest())
                except grpc.aio.AioRpcError as refused:
                    if refused.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    return False
                return True

            slow = [stub.Score(long) for _ in range(2)]
            assert await becomes(lambda: teacher.held() == 2)
            assert not await is_known(), "both places are taken"
            assert await becomes(lambda: teacher.held() == 0)
            for _ in range(500):
                if await is_known():
                    break
                await asyncio.sleep(0.02)
            assert await is_known()
            for call in slow:  # whoever reads again learns what became of the call
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    async with asyncio.timeout(30):
                        [part async for part in call]
                assert isinstance(error_in(raised.value), DeadlineExceededError)
        assert await becomes(lambda: teacher.metric('tokbridge_cancellations_total{reason="slow_reader"}') == 2)
        assert teacher.metric('tokbridge_cancellations_total{reason="client_gone"}') == 0
