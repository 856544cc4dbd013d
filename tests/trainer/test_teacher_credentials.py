"""Where a run's credentials come from; a key never stands in the configuration or in what is written of it."""

import pytest

from support.training import make_config
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.config_loading import dump_config
from tokbridge_trainer.teacher_credentials import exposed_addresses, load_credentials

SECRET = "a-secret-key"


def teacher(**changes):
    return make_config(teacher={"urls": ["localhost:1"], **changes}).teacher


def test_without_any_there_are_none():
    credentials = load_credentials(teacher())
    assert credentials.metadata == ()
    assert (credentials.ca, credentials.certificate, credentials.key) == (None, None, None)


def test_certificates_and_key_are_read_where_the_configuration_says(tmp_path, monkeypatch):
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("TEACHER_KEY", SECRET)
    tls = {name: str(tmp_path / name) for name in ("ca", "certificate", "key")}
    config = make_config(teacher={"urls": ["grpcs://a:1"], "tls": tls, "api_key_env": "TEACHER_KEY"})
    credentials = load_credentials(config.teacher)
    assert (credentials.ca, credentials.certificate, credentials.key) == (b"ca", b"certificate", b"key")
    assert credentials.metadata == (("authorization", f"Bearer {SECRET}"),)
    for text in (dump_config(config), repr(config), repr(credentials)):
        assert SECRET not in text


def test_a_key_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidConfigError, match="api_key_file"):
        load_credentials(teacher(api_key_file=str(tmp_path / "missing")))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"api_key_file": "a", "api_key_env": "B"}, "teacher"),
        ({"tls": {"certificate": "a"}}, "teacher.tls"),
        ({"api_key": SECRET}, "teacher.api_key"),
        ({"max_replica_divergence": -1}, "teacher.max_replica_divergence"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, key):
    with pytest.raises(InvalidConfigError, match=key):
        teacher(**changes)


def test_a_key_that_would_cross_a_network_in_the_clear_is_named(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", SECRET)
    urls = ["a:1", "grpc://b:2", "grpcs://c:3", "localhost:4"]
    with_key, without = teacher(urls=urls, api_key_env="TEACHER_KEY"), teacher(urls=urls)
    assert exposed_addresses(with_key, load_credentials(with_key)) == ["a:1", "b:2"]
    assert exposed_addresses(without, load_credentials(without)) == []
