"""Certificates that are replaced while a service runs hold for the next connection, on both ports."""

import asyncio
import logging
import ssl
from pathlib import Path

import grpc
import pytest

from support.certificates import Authority, Pair
from support.served import served_over_grpc, served_over_http
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.tls import ServerTls

NAMES = ("localhost", "127.0.0.1")


class Files:
    """A service's certificates on the disk, as an operator replaces them: a new file in the place of the old one."""

    def __init__(self, folder: Path, client_ca: bool) -> None:
        self.folder = folder
        self.tls = ServerTls(folder / "crt", folder / "key", folder / "ca" if client_ca else None)

    def put(self, server: Pair, clients: Authority) -> None:
        self.replace("crt", server.certificate)
        self.replace("key", server.key)
        self.replace("ca", clients.certificate)

    def replace(self, name: str, content: bytes) -> None:
        new = self.folder / f"{name}.new"
        new.write_bytes(content)
        new.rename(self.folder / name)


async def grpc_answers(target: str, trusted: Authority, own: Pair) -> bool:
    credentials = grpc.ssl_channel_credentials(trusted.certificate, own.key, own.certificate)
    async with grpc.aio.secure_channel(target, credentials) as channel:
        try:
            await teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def https_answers(url: str, trusted: Authority, own: Pair, folder: Path, server_name: str | None) -> bool:
    context = ssl.create_default_context(cadata=trusted.certificate.decode())
    context.check_hostname = server_name is not None
    (folder / "own").write_bytes(own.certificate + own.key)
    context.load_cert_chain(folder / "own")
    port = int(url.rsplit(":", 1)[1])
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname=server_name or ""
        )
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return b"200 OK" in answer


@pytest.mark.parametrize("server_name", ["localhost", None])
@pytest.mark.parametrize("client_ca", [False, True])
async def test_replaced_files_hold_for_new_connections(client_ca, server_name, tmp_path, built_teacher, caplog):
    caplog.set_level(logging.INFO, "tokbridge_teacher.tls_rotation")
    files = Files(tmp_path, client_ca)
    authorities = [(Authority("servers"), Authority("clients")) for _ in range(2)]
    pairs = [servers.issue(*NAMES) for servers, _ in authorities]
    clients = [authority.issue("client") for _, authority in authorities]
    files.put(pairs[0], authorities[0][1])

    with served_over_http(built_teacher.service, tls=files.tls) as url:
        async with served_over_grpc(built_teacher.service, tls=files.tls) as target:

            async def answers(generation: int, client: int) -> set[bool]:
                trusted, own = authorities[generation][0], clients[client]
                over_http = await https_answers(url, trusted, own, tmp_path, server_name)
                return {await grpc_answers(target, trusted, own), over_http}

            assert await answers(0, 0) == {True}
            assert await answers(1, 0) == {False}
            files.replace("crt", pairs[1].certificate)  # its key is still to come
            assert await answers(0, 0) == {True}
            assert "certificates are left as they were" in caplog.text
            files.put(pairs[1], authorities[1][1])
            assert await answers(1, 1) == {True}
            assert await answers(0, 1) == {False}
            assert await answers(1, 0) == {not client_ca}
            assert await answers(1, 1) == {True}
    assert caplog.text.count("certificates were read anew") == 2, "once for each port, and not at every handshake"


async def test_a_connection_that_is_open_outlives_its_certificate(tmp_path, built_teacher):
    files = Files(tmp_path, client_ca=False)
    servers = Authority("servers")
    files.put(servers.issue(*NAMES), Authority("clients"))
    async with served_over_grpc(built_teacher.service, tls=files.tls) as target:
        credentials = grpc.ssl_channel_credentials(servers.certificate)
        async with grpc.aio.secure_channel(target, credentials) as channel:
            stub = teacher_pb2_grpc.TeacherStub(channel)
            for _ in range(2):
                assert (await stub.GetTeacher(teacher_pb2.GetTeacherRequest(), timeout=10)).model
                files.put(Authority("others").issue(*NAMES), Authority("clients"))
