import logging

import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError

from support.api_keys import KEY_FILE
from support.certificates import Authority
from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.key_ring import KEYS_VARIABLE
from tokbridge_teacher.security import open_security
from tokbridge_teacher.settings import ServeSettings


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority()
    for name in ("a", "b"):
        pair = authority.issue("localhost")
        (folder / f"{name}.crt").write_bytes(pair.certificate)
        (folder / f"{name}.key").write_bytes(pair.key)
    key = serialization.load_pem_private_key((folder / "a.key").read_bytes(), None)
    (folder / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "garbage").write_bytes(b"garbage")
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "ca", "field", "says"),
    [
        ("missing", "a.key", None, "tls_certificate", "No such file"),
        ("a.crt", "missing", None, "tls_key", "No such file"),
        ("a.crt", "b.key", None, "tls_key", "do not belong together"),
        ("a.crt", "locked.key", None, "tls_key", "encrypted"),
        ("garbage", "a.key", None, "tls_key", "not PEM"),
        ("a.crt", "garbage", None, "tls_key", "not PEM"),
        ("a.crt", "a.key", "missing", "tls_client_ca", "No such file"),
        ("a.crt", "a.key", "garbage", "tls_client_ca", "no certificate"),
    ],
)
def test_certificates_that_cannot_work_are_refused_at_start(certificate, key, ca, field, says, files):
    settings = ServeSettings(
        model="m",
        tls_certificate=files / certificate,
        tls_key=files / key,
        tls_client_ca=None if ca is None else files / ca,
    )
    with pytest.raises(InvalidConfigError, match=says) as refused:
        open_security(settings, {})
    assert refused.value.details["field"] == field


@pytest.mark.parametrize("given", [{"tls_certificate": "a"}, {"tls_key": "a"}, {"tls_client_ca": "a"}])
def test_half_of_a_certificate_is_refused(given):
    with pytest.raises(ValidationError, match="tls_"):
        ServeSettings(model="m", **given)


@pytest.mark.parametrize(
    ("host", "keyed", "encrypted", "warnings"),
    [
        ("127.0.0.1", False, False, []),
        ("::1", False, False, []),
        ("localhost", False, False, []),
        ("0.0.0.0", False, False, ["WITHOUT API KEYS", "WITHOUT TLS"]),
        ("::", False, False, ["WITHOUT API KEYS", "WITHOUT TLS"]),
        ("10.0.0.7", True, False, ["WITHOUT TLS"]),
        ("teacher.example", False, True, ["WITHOUT API KEYS"]),
        ("0.0.0.0", True, True, []),
    ],
)
def test_a_start_that_others_can_reach_warns_of_what_is_missing(host, keyed, encrypted, warnings, files, caplog):
    certificate = {"tls_certificate": files / "a.crt", "tls_key": files / "a.key"} if encrypted else {}
    settings = ServeSettings(model="m", host=host, **certificate)
    with caplog.at_level(logging.WARNING):
        security = open_security(settings, {KEYS_VARIABLE: KEY_FILE} if keyed else {})
    assert (security.keys is not None, security.tls is not None) == (keyed, encrypted)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * len(warnings)
    for warning, record in zip(warnings, caplog.records, strict=True):
        assert warning in record.getMessage()
