"""A gRPC connection ends after a while, so that what its client never reads ends with it, and no call notices."""

import asyncio

import grpc

from support.freezing_proxy import proxy_to
from support.served import served_over_grpc
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.protocols import grpc_server

SHORT_MS = {"grpc.max_connection_age_ms": 300, "grpc.max_connection_age_grace_ms": 300}


async def test_calls_go_on_over_a_new_connection_when_theirs_is_old(built_teacher, monkeypatch):
    options = [(name, SHORT_MS.get(name, value)) for name, value in grpc_server._CONNECTION_OPTIONS]
    monkeypatch.setattr(grpc_server, "_CONNECTION_OPTIONS", options)
    async with (
        served_over_grpc(built_teacher.service) as target,
        proxy_to(int(target.rsplit(":", 1)[1])) as proxy,
        grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as channel,
        asyncio.timeout(30),
    ):
        while proxy.connections < 3:
            await teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest())
            await asyncio.sleep(0.02)
