"""What a client shows and demands: read from files and variables, never shown in the wrong place."""

import logging

import pytest

from tokbridge.client import ClientCredentials, TeacherClient
from tokbridge.client.target import parse_target, parse_targets
from tokbridge.errors import InvalidConfigError

SECRET = "a-secret-key"


@pytest.mark.parametrize(
    ("text", "address", "tls"),
    [
        ("host:1", "host:1", None),
        ("grpc://host:1", "host:1", False),
        ("grpcs://host:1/", "host:1", True),
        ("[::1]:50051", "[::1]:50051", None),
    ],
)
def test_the_scheme_says_whether_to_encrypt(text, address, tls):
    target = parse_target(text)
    assert (target.address, target.tls) == (address, tls)


@pytest.mark.parametrize("targets", [[], ["a:1", "grpc://a:1"]])
def test_replicas_have_an_address_each(targets):
    with pytest.raises(InvalidConfigError):
        parse_targets(targets)


@pytest.mark.parametrize("name", ["node..cluster", ".node", "n" * 64, f"{'n' * 64}.cluster"])
def test_a_name_that_no_resolver_takes_is_a_typed_error(name):
    with pytest.raises(InvalidConfigError, match="is not host:port"):
        parse_target(f"{name}:1")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.1", True), ("[::1]", True), ("10.0.0.1", False), ("localhost.evil.org", False)],
)
def test_loopback(host, loopback):
    assert parse_target(f"{host}:1").is_loopback is loopback


def test_without_a_scheme_certificates_decide():
    target = parse_target("host:1")
    assert ClientCredentials(ca=b"x").encrypts(target)
    assert not ClientCredentials(api_key=SECRET).encrypts(target)
    assert ClientCredentials().encrypts(parse_target("grpcs://host:1"))


def test_certificates_for_a_plain_channel_are_a_contradiction():
    with pytest.raises(InvalidConfigError, match="grpcs://"):
        TeacherClient("grpc://host:1", credentials=ClientCredentials(ca=b"x"))


def test_no_key_shows_in_a_representation():
    credentials = ClientCredentials(ca=b"ca-pem", certificate=b"own-pem", key=b"key-pem", api_key=SECRET)
    for secret in ("ca-pem", "own-pem", "key-pem", SECRET):
        assert secret not in repr(credentials)


def test_files_and_variables_are_read(tmp_path):
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "api_key").write_text(f"{SECRET}\n")
    files = {name: tmp_path / name for name in ("ca", "certificate", "key")}
    from_file = ClientCredentials.from_files(**files, api_key_file=tmp_path / "api_key")
    assert (from_file.ca, from_file.certificate, from_file.key) == (b"ca", b"certificate", b"key")
    from_variable = ClientCredentials.from_files(api_key_env="KEY", environ={"KEY": SECRET})
    assert from_file.metadata == from_variable.metadata == (("authorization", f"Bearer {SECRET}"),)


@pytest.mark.parametrize("name", ["ca", "api_key_file"])
def test_a_missing_file_is_named(name, tmp_path):
    with pytest.raises(InvalidConfigError, match=f"cannot read `{name}`"):
        ClientCredentials.from_files(**{name: tmp_path / "missing"})


@pytest.mark.parametrize(
    "sources", [{"api_key_env": "KEY"}, {"api_key_env": "KEY", "api_key_file": "/dev/null"}, {"api_key_env": "EMPTY"}]
)
def test_a_key_has_one_source_that_has_it(sources):
    with pytest.raises(InvalidConfigError):
        ClientCredentials.from_files(**sources, environ={"EMPTY": ""})


@pytest.mark.parametrize("key", ["", "two\nlines", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key):
    with pytest.raises(InvalidConfigError) as raised:
        ClientCredentials(api_key=key)
    assert not key or key not in str(raised.value)


def test_a_certificate_without_its_key_is_refused():
    with pytest.raises(InvalidConfigError, match="go together"):
        ClientCredentials(certificate=b"x")


@pytest.mark.parametrize(
    ("target", "warned"),
    [("10.0.0.1:1", True), ("grpc://teacher:1", True), ("127.0.0.1:1", False), ("grpcs://teacher:1", False)],
)
def test_a_key_that_crosses_a_network_in_the_clear_is_warned_of(target, warned, caplog):
    with caplog.at_level(logging.WARNING):
        TeacherClient(target, credentials=ClientCredentials(api_key=SECRET))
    assert ("WITHOUT ENCRYPTION" in caplog.text) is warned
    assert SECRET not in caplog.text
