"""The HTTP protocol, thin: JSON for people, protobuf for machines, health and metrics for operators.

A body is protobuf when its `Content-Type` is `application/x-protobuf`, an answer when `Accept` says so; several
messages follow one another, each behind its length as a varint. A fault after the first message of a stream breaks the
connection off: the missing trailer tells the client.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from tokbridge import __version__
from tokbridge.errors import RequestCancelledError, TokbridgeError
from tokbridge.registration import StudentRegistration
from tokbridge.requests import ScoreRequest
from tokbridge_teacher.faults import internal_faults
from tokbridge_teacher.protocols import http_protobuf
from tokbridge_teacher.protocols.authentication import CALLER, Authenticator, HttpAuthentication
from tokbridge_teacher.protocols.body_limits import BodyLimit
from tokbridge_teacher.protocols.call_records import RequestIds, http_call
from tokbridge_teacher.protocols.http_errors import answer_typed_error, parse_json, request_id_of
from tokbridge_teacher.protocols.http_json import JsonAnswer, parse_score_body
from tokbridge_teacher.protocols.http_rooms import ConnectionRoom, RoomForHealth
from tokbridge_teacher.protocols.http_schema import (
    ErrorBody,
    RegisteredAnswer,
    ScoreAnswer,
    ScoreBody,
    StudentBody,
)
from tokbridge_teacher.protocols.messages import registration_message, score_messages
from tokbridge_teacher.request_limits import read_in_thread
from tokbridge_teacher.service import TeacherService
from tokbridge_teacher.settings import RequestLimits
from tokbridge_teacher.upload_budget import UploadBudget

Answer = TypeVar("Answer")

_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorBody}, "5XX": {"model": ErrorBody}}


def build_http_app(
    service: TeacherService,
    *,
    max_message_bytes: int,
    uploads: UploadBudget | None = None,
    authenticator: Authenticator | None = None,
    room: ConnectionRoom | None = None,
) -> FastAPI:
    """The HTTP application of one service.

    Args:
        max_message_bytes: of one body.
        uploads: room for all bodies that are held; None: no more bound than that on one.
        authenticator: without one, everybody may call.
        room: of the server's connections; None: they are not bounded.
    """
    app = FastAPI(title="tokbridge teacher", version=__version__, responses=_ERRORS)
    app.add_middleware(
        BodyLimit,
        max_bytes=max_message_bytes,
        uploads=uploads or UploadBudget(sys.maxsize),
        observer=service.observer,
    )
    if authenticator is not None:
        app.add_middleware(HttpAuthentication, authenticator=authenticator)
    if room is not None:
        app.add_middleware(RoomForHealth, room=room, observer=service.observer)
    app.add_middleware(RequestIds)  # the last one added is asked first
    app.add_exception_handler(TokbridgeError, answer_typed_error)
    _add_teacher_routes(app, service)
    _add_operator_routes(app, service)
    return app


def _add_teacher_routes(app: FastAPI, service: TeacherService) -> None:
    @app.get("/v1/teacher", summary="Who the teacher is and what it can do.")
    async def teacher() -> dict[str, Any]:
        return _to_dict(service.describe().to_proto())

    @app.post(
        "/v1/students",
        summary="Make a student known.",
        response_model=RegisteredAnswer,
        openapi_extra=_body(StudentBody),
    )
    async def students(request: Request) -> Response:
        with service.observer.registration(request_id_of(request), "http", CALLER.get()):
            return await _register(service, request)

    @app.post("/v1/score", summary="Score one turn.", response_model=ScoreAnswer, openapi_extra=_body(ScoreBody))
    async def score(request: Request) -> Response:
        with internal_faults(request_id_of(request)):
            return await _score(service, request)


def _add_operator_routes(app: FastAPI, service: TeacherService) -> None:
    @app.get("/healthz", summary="The process runs.", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get(
        "/readyz",
        summary="The self-test passed and the service is not stopping.",
        response_class=PlainTextResponse,
    )
    async def readyz() -> PlainTextResponse:
        return PlainTextResponse("ready\n" if service.ready else "not ready\n", 200 if service.ready else 503)

    @app.get("/metrics", summary="Counters in the Prometheus text format.", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def _register(service: TeacherService, request: Request) -> Response:
    content = await request.body()
    if http_protobuf.sends_protobuf(request):
        upload = await asyncio.to_thread(http_protobuf.parse_upload, content, service.contract_limits)
        registered = await service.register(partial(StudentRegistration.from_upload, upload), CALLER.get())
    else:
        body = await asyncio.to_thread(parse_json, StudentBody, content)
        registered = await service.register(partial(body.to_registration, service.contract_limits), CALLER.get())
    answer = registration_message(registered)
    if http_protobuf.wants_protobuf(request):
        return Response(answer.SerializeToString(), media_type=http_protobuf.MEDIA_TYPE)
    return JSONResponse(_to_dict(answer))


async def _score(service: TeacherService, request: Request) -> Response:
    call, caller = http_call(request.scope), CALLER.get()
    with service.observer.reading(request_id_of(request), caller, call):
        student_id, score_request = await _score_request(request, service.limits)
    if http_protobuf.wants_protobuf(request):
        return await _streamed(request, score_messages(service, student_id, score_request, caller, None, call))
    answer = JsonAnswer(score_request.request_id, service.limits.max_message_bytes, request.state.hold)
    parts = service.score(student_id, score_request, caller, None, call)
    return await _unless_disconnected(request, answer.collect(parts, call.encoded))


async def _score_request(request: Request, limits: RequestLimits) -> tuple[str, ScoreRequest]:
    """Student id and request of a body in either form, a large one read in a thread: it takes seconds."""
    content = await request.body()
    request_id = request_id_of(request)
    if not http_protobuf.sends_protobuf(request):
        return await asyncio.to_thread(parse_score_body, content, request_id, limits)
    message = http_protobuf.parse_score_request(content)
    score_request = await read_in_thread(message, limits)
    request.state.request_id = score_request.request_id or request_id
    return message.student_id, replace(score_request, request_id=request.state.request_id)


async def _streamed(request: Request, messages: AsyncGenerator[bytes]) -> Response:
    """A stream of serialized messages, once the first is there: until then an error still has its own status."""
    try:
        first = await _unless_disconnected(request, anext(messages))
    except BaseException:
        await messages.aclose()
        raise

    async def rest() -> AsyncGenerator[bytes]:
        async with aclosing(messages):
            yield http_protobuf.length_delimited(first)
            async for message in messages:
                yield http_protobuf.length_delimited(message)

    return StreamingResponse(rest(), media_type=http_protobuf.MEDIA_TYPE)


async def _unless_disconnected(request: Request, answer: Awaitable[Answer]) -> Answer:
    """Await an answer, but stop the work on it as soon as the client has gone (a handler would run to its end)."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise RequestCancelledError("The client disconnected.")
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.wait((work, gone))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _to_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI of a body that is read by its content type: nested models are written out in place."""
    schema = model.model_json_schema()
    text = json.dumps({key: value for key, value in schema.items() if key != "$defs"})
    for name, definition in schema.get("$defs", {}).items():
        text = text.replace(json.dumps({"$ref": f"#/$defs/{name}"}), json.dumps(definition))
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {"application/json": {"schema": json.loads(text)}, http_protobuf.MEDIA_TYPE: binary}
    return {"requestBody": {"required": True, "content": content}}
