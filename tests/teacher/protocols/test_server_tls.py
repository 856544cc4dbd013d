import ssl

import grpc
import httpx
import pytest

from support.api_keys import LARGE_KEY, two_callers
from support.certificates import Authority
from support.requests_for import request_for
from support.served import served_over_grpc, served_over_http
from tokbridge.client import TeacherClient
from tokbridge.client.credentials import ClientCredentials
from tokbridge.v1 import teacher_pb2, teacher_pb2_grpc
from tokbridge_teacher.protocols.authentication import Authenticator
from tokbridge_teacher.tls import ServerTls


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A service's certificate, and one of a client by another authority; a stranger's besides."""
    folder = tmp_path_factory.mktemp("certificates")
    servers, clients = Authority("servers"), Authority("clients")
    pairs = {
        "server": servers.issue("localhost", "127.0.0.1"),
        "client": clients.issue("client"),
        "stranger": Authority("strangers").issue("client"),
    }
    for name, pair in pairs.items():
        (folder / f"{name}.crt").write_bytes(pair.certificate)
        (folder / f"{name}.key").write_bytes(pair.key)
    (folder / "servers.pem").write_bytes(servers.certificate)
    (folder / "clients.pem").write_bytes(clients.certificate)
    return folder


@pytest.fixture(params=["tls", "mtls"])
def tls(request, files) -> ServerTls:
    client_ca = files / "clients.pem" if request.param == "mtls" else None
    return ServerTls(files / "server.crt", files / "server.key", client_ca)


def channel_credentials(files, client: str | None, ca: str | None = "servers.pem") -> grpc.ChannelCredentials:
    own = () if client is None else ((files / f"{client}.key").read_bytes(), (files / f"{client}.crt").read_bytes())
    return grpc.ssl_channel_credentials(None if ca is None else (files / ca).read_bytes(), *own)


def context(files, client: str | None, ca: str = "servers.pem") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(files / ca))
    if client is not None:
        made.load_cert_chain(files / f"{client}.crt", files / f"{client}.key")
    return made


@pytest.mark.parametrize("client", [None, "client", "stranger"])
async def test_grpc_lets_in_whom_the_certificates_let_in(client, tls, files, built_teacher):
    welcome = tls.client_ca is None or client == "client"
    async with (
        served_over_grpc(built_teacher.service, tls=tls) as target,
        grpc.aio.secure_channel(target, channel_credentials(files, client)) as channel,
    ):
        call = teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest(), timeout=10)
        if welcome:
            assert (await call).context_length == 600
        else:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("client", [None, "client", "stranger"])
def test_http_lets_in_whom_the_certificates_let_in(client, tls, files, built_teacher):
    welcome = tls.client_ca is None or client == "client"
    with served_over_http(built_teacher.service, tls=tls) as url:
        assert url.startswith("https://")
        with httpx.Client(verify=context(files, client)) as http:
            if welcome:
                assert http.get(f"{url}/healthz").status_code == 200
            else:
                with pytest.raises(httpx.TransportError):
                    http.get(f"{url}/healthz")


async def test_a_client_that_trusts_others_does_not_call(tls, files, built_teacher):
    async with served_over_grpc(built_teacher.service, tls=tls) as target:
        credentials = channel_credentials(files, "client", "clients.pem")
        async with grpc.aio.secure_channel(target, credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest(), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with (
        served_over_http(built_teacher.service, tls=tls) as url,
        httpx.Client(verify=context(files, "client", "clients.pem")) as http,
        pytest.raises(httpx.TransportError),
    ):
        http.get(f"{url}/healthz")


async def test_plain_text_to_an_encrypted_port_gets_no_answer(tls, built_teacher):
    async with served_over_grpc(built_teacher.service, tls=tls) as target, grpc.aio.insecure_channel(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await teacher_pb2_grpc.TeacherStub(channel).GetTeacher(teacher_pb2.GetTeacherRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    with served_over_http(built_teacher.service, tls=tls) as url, pytest.raises(httpx.TransportError):
        httpx.get(url.replace("https", "http") + "/healthz")


async def test_the_client_of_the_contract_scores_with_key_and_certificate(
    files, built_teacher, student_profile, student_registration
):
    tls = ServerTls(files / "server.crt", files / "server.key", files / "clients.pem")
    authenticator = Authenticator(two_callers(), built_teacher.service.metrics)
    credentials = ClientCredentials.from_files(
        ca=files / "servers.pem", certificate=files / "client.crt", key=files / "client.key", api_key_file=None
    )
    credentials = ClientCredentials(credentials.ca, credentials.certificate, credentials.key, LARGE_KEY)
    async with (
        served_over_grpc(built_teacher.service, tls=tls, authenticator=authenticator) as target,
        TeacherClient(target, credentials=credentials) as client,
    ):
        await client.connect(student_registration)
        request = request_for(student_profile)
        assert (await client.score(request)).rows.num_rows == request.num_rows
