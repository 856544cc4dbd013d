"""TLS, mTLS and API keys of the client, over real sockets with certificates made here."""

import grpc
import pytest

from support.certificates import Authority
from support.fake_teacher import FakeTeacher, make_request, make_student, serving
from tokbridge.client import ClientCredentials, RetryPolicy, TeacherClient
from tokbridge.errors import InvalidConfigError, TeacherUnavailableError

QUICK = RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
NAME = "teacher.example"


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def server(authority):
    return authority.issue(NAME)


async def loopback(host, port):
    """Every name is this machine."""
    return ["127.0.0.1"]


async def score_over(tls, credentials, url="grpcs://{name}:{port}", name=NAME):
    teacher = FakeTeacher()
    async with serving(teacher, tls=tls) as port:
        options = {"retry": QUICK, "connect_timeout_s": 1.0, "resolve": loopback}
        async with TeacherClient(url.format(name=name, port=port), credentials=credentials, **options) as client:
            await client.connect(make_student())
            await client.score(make_request())
    return teacher


def server_tls(pair, client_ca=None):
    return grpc.ssl_server_credentials([(pair.key, pair.certificate)], client_ca, client_ca is not None)


@pytest.mark.parametrize("url", ["grpcs://{name}:{port}", "{name}:{port}"])
async def test_a_teacher_with_the_right_name_and_authority_is_trusted(authority, server, url):
    await score_over(server_tls(server), ClientCredentials(ca=authority.certificate), url)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "another.example"}, "Hostname"),
        ({"ca": "another"}, "CERTIFICATE_VERIFY_FAILED"),
        ({"plain": True}, "WRONG_VERSION_NUMBER"),
    ],
)
async def test_what_cannot_be_trusted_is_refused_at_once_with_the_reason(authority, server, change, reason):
    ca = Authority("another").certificate if "ca" in change else authority.certificate
    tls = None if "plain" in change else server_tls(server)
    with pytest.raises(InvalidConfigError, match=reason):
        await score_over(tls, ClientCredentials(ca=ca), name=change.get("name", NAME))


async def test_a_teacher_that_asks_for_a_certificate_gets_it(authority, server):
    own = authority.issue("trainer")
    credentials = ClientCredentials(ca=authority.certificate, certificate=own.certificate, key=own.key)
    await score_over(server_tls(server, authority.certificate), credentials)


async def test_without_one_it_does_not_answer(authority, server):
    with pytest.raises(TeacherUnavailableError, match="no teacher answers"):
        await score_over(server_tls(server, authority.certificate), ClientCredentials(ca=authority.certificate))


@pytest.mark.parametrize("encrypted", [False, True])
async def test_the_key_travels_with_every_call(authority, server, encrypted):
    credentials = ClientCredentials(ca=authority.certificate if encrypted else None, api_key="a-key")
    teacher = await score_over(server_tls(server) if encrypted else None, credentials, "{name}:{port}")
    assert len(teacher.metadata) == 4  # handshake, registration, probe, score
    assert {metadata["authorization"] for metadata in teacher.metadata} == {"Bearer a-key"}
