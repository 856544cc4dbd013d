"""Conversations and templates that must not take the service with them, through the whole service."""

import asyncio
import json
from dataclasses import replace

import grpc
import httpx
import pytest

from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from support.small_tokenizers import CHATML
from support.tiny_models import TINY_TEACHER, save_tiny_model
from tokbridge.client import TeacherClient
from tokbridge.error_mapping import ERROR_TRAILER_KEY, error_of
from tokbridge.errors import ChatTemplateError, ErrorCode
from tokbridge.registration import StudentRegistration
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge.wire import decode_rows
from tokbridge_teacher.building import build_service
from tokbridge_teacher.settings import RequestLimits, ServeSettings

LOOPING = (
    "{% set text = messages[0].content %}{% for a in text %}{% for b in text %}{% for c in text %}{% for d in text %}"
    "{% endfor %}{% endfor %}{% endfor %}{% endfor %}" + CHATML
)
"""Harmless on short conversations; of the fourth power in a long one."""


@pytest.fixture(scope="module")
def looping_teacher(tmp_path_factory):
    folder = save_tiny_model(TINY_TEACHER, tmp_path_factory.mktemp("looping"))
    (folder / "chat_template.jinja").write_text(LOOPING)
    built = build_service(
        ServeSettings(model=str(folder), render_timeout_s=1.0, limits=RequestLimits(max_students=2), prepare_threads=3)
    )
    yield built
    built.stop(grace_s=5)
    built.close()


def typed(failure: grpc.aio.AioRpcError):
    return error_of(teacher_pb2.ErrorDetail.FromString(dict(failure.trailing_metadata())[ERROR_TRAILER_KEY]))


async def test_a_conversation_on_which_the_template_loops_is_refused_and_others_go_on(
    looping_teacher, student_profile, student_registration
):
    long = request_for(student_profile, messages=[{"role": "user", "content": "x" * 3000}])
    short = request_for(student_profile, messages=[{"role": "user", "content": "x"}])
    async with served_over_grpc(looping_teacher.service) as target, TeacherClient(target) as client:
        await client.connect(student_registration)
        loops = [asyncio.create_task(client.score(long)) for _ in range(2)]
        result = await client.score(short)
        assert result.rows.num_rows == short.num_rows
        for refused in await asyncio.gather(*loops, return_exceptions=True):
            assert isinstance(refused, ChatTemplateError)
        assert (await client.score(short)).rows.num_rows == short.num_rows


async def test_more_students_than_are_kept_never_get_each_others_rows(
    looping_teacher, student_profile, teacher_profile, student_registration
):
    """Six students of two vocabularies in a registry of two: rows are right, or the student is unknown."""
    profiles = (student_profile, teacher_profile)
    short = [{"role": "user", "content": "x"}]
    requests = [request_for(profile, "she sells sea shells", messages=short) for profile in profiles]
    registrations = [student_registration, StudentRegistration.from_profile(teacher_profile)]
    async with served_over_grpc(looping_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)

        async def rows(student: StudentRegistration, which: int) -> list[bytes] | None:
            try:
                parts = [part async for part in stub.Score(requests[which].to_proto(student.student_id))]
            except grpc.aio.AioRpcError as failure:
                if typed(failure).code is ErrorCode.UNKNOWN_STUDENT:
                    return None
                raise
            # Masses depend on the batch in their last bits, ids do not.
            ids = [decode_rows(part.rows).cell_ids.tobytes() for part in parts if part.HasField("rows")]
            return [b"".join(ids), b"".join(part.rows.cases for part in parts)]

        async def register_and_score(number: int) -> list[list[bytes] | None]:
            student = replace(registrations[number % 2], name=str(number), tokenizer_json=None)
            answers = []
            for _ in range(4):
                await stub.RegisterStudent(iter(student.to_messages()))
                answers.append(await rows(student, number % 2))
            return answers

        alone = [(await register_and_score(number))[-1] for number in range(2)]
        together = await asyncio.gather(*map(register_and_score, range(6)))
    assert alone[0] != alone[1]
    assert None not in alone
    for number, answers in enumerate(together):
        assert all(answer in (None, alone[number % 2]) for answer in answers)
    assert sum(answer is not None for answers in together for answer in answers) >= 6


@pytest.mark.parametrize("prefix", ["narrator", "a b"])
async def test_a_tokenizer_on_which_the_library_panics_is_refused(
    prefix, built_teacher, student_registration, student_profile
):
    """Found by fuzzing: a Rust panic is no `Exception`, and the call hung until its deadline."""
    spec = json.loads(student_registration.tokenizer_json)
    spec["model"]["continuing_subword_prefix"] = prefix
    text = json.dumps(spec)
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        stub = teacher_pb2_grpc.TeacherStub(channel)
        messages = replace(student_registration, tokenizer_json=text).to_messages()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.RegisterStudent(iter(messages), timeout=30)
    assert typed(refused.value).code is ErrorCode.INVALID_VOCABULARY
    body = {"name": "panic", "tokenizer_json": text, "stop_ids": [student_profile.turn_end_id]}
    with served_over_http(built_teacher.service) as url:
        answer = httpx.post(f"{url}/v1/students", json=body, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_vocabulary")


@pytest.mark.parametrize(("method", "kind"), [("GetTeacher", "unary_unary"), ("Score", "unary_stream")])
async def test_bytes_that_are_no_message_are_refused_as_such(method, kind, built_teacher):
    """Found by fuzzing: grpcio ended the call with UNKNOWN, which a client tries again."""
    async with served_over_grpc(built_teacher.service) as target, grpc.aio.insecure_channel(target) as channel:
        call = getattr(channel, kind)(f"/tokbridge.v1.Teacher/{method}")(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            _ = [part async for part in call] if kind == "unary_stream" else await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        upload = channel.stream_unary("/tokbridge.v1.Teacher/RegisterStudent")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await upload(iter([b"\xff\xff"]))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
