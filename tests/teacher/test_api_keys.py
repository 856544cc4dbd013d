import logging
import os

import pytest

from support.api_keys import KEY_FILE, LARGE_KEY, SMALL_KEY, two_callers
from tokbridge.errors import InvalidConfigError
from tokbridge_teacher.api_keys import ApiKeys
from tokbridge_teacher.callers import Caller
from tokbridge_teacher.key_ring import KEYS_VARIABLE, RELOAD_S, KeyFile, open_key_ring

OTHER_KEY = "another-key-0123456789abcdef"


def test_a_key_gives_its_caller_and_share():
    keys = two_callers()
    assert keys.caller(LARGE_KEY) == Caller("large", 3.0)
    assert keys.caller(SMALL_KEY) == Caller("small", 1.0)
    for wrong in ("", LARGE_KEY[:-1], LARGE_KEY + " ", LARGE_KEY.upper(), "ключ", "\udcff"):
        assert keys.caller(wrong) is None


def test_every_key_is_compared_whether_one_is_found_or_not(monkeypatch):
    compared = []
    real = __import__("hmac").compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(len(a)) or real(a, b))
    for key in (LARGE_KEY, SMALL_KEY, "x", "y" * 1000):
        two_callers().caller(key)
    assert compared == [32] * 8


def test_one_name_may_have_two_keys_while_they_are_replaced():
    keys = ApiKeys.parse(f"a:2:{LARGE_KEY}\na:2:{SMALL_KEY}\n", "x")
    assert keys.caller(LARGE_KEY) == keys.caller(SMALL_KEY) == Caller("a", 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        LARGE_KEY,
        f"large:{LARGE_KEY}",
        f"large:x:{LARGE_KEY}",
        f"large:0:{LARGE_KEY}",
        f"large:-1:{LARGE_KEY}",
        f"large:inf:{LARGE_KEY}",
        f"large:nan:{LARGE_KEY}",
        "large:1:short",
        f"large:1:with space {LARGE_KEY}",
        f"bad name:1:{LARGE_KEY}",
        f":1:{LARGE_KEY}",
        f"anonymous:1:{LARGE_KEY}",
        f"a:1:{LARGE_KEY}\nb:1:{LARGE_KEY}",
        f"a:1:{LARGE_KEY}\na:2:{SMALL_KEY}",
    ],
)
def test_a_bad_key_file_is_refused_and_the_error_holds_no_secret(text):
    with pytest.raises(InvalidConfigError) as refused:
        ApiKeys.parse(text, "keys")
    for secret in (LARGE_KEY, SMALL_KEY, "short"):
        assert secret not in f"{refused.value!r}{refused.value.details}"


def test_no_repr_holds_a_key():
    keys = two_callers()
    shown = f"{keys!r} {vars(keys)!r}"
    assert "large" in shown
    for secret in (LARGE_KEY, SMALL_KEY):
        assert secret not in shown


def test_a_key_file_is_read_again_when_it_changes_and_kept_when_it_breaks(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path, now = tmp_path / "keys", [0.0]
    path.write_text(KEY_FILE)
    ring = KeyFile(path, clock=lambda: now[0])

    def write(text: str) -> None:
        replacement = tmp_path / "new"
        replacement.write_text(text)
        os.replace(replacement, path)
        now[0] += RELOAD_S

    assert ring.caller(OTHER_KEY) is None
    write(f"other:1:{OTHER_KEY}\n")
    assert ring.caller(OTHER_KEY) == Caller("other", 1.0)
    assert ring.caller(LARGE_KEY) is None
    write("broken")
    assert ring.caller(OTHER_KEY) == Caller("other", 1.0)
    path.unlink()
    now[0] += RELOAD_S
    assert ring.caller(OTHER_KEY) == Caller("other", 1.0)
    write(KEY_FILE)
    assert ring.caller(LARGE_KEY) == Caller("large", 3.0)
    assert caplog.text.count("left as they were") == 2
    assert not any(key in caplog.text for key in (LARGE_KEY, SMALL_KEY, OTHER_KEY))


def test_a_key_file_is_read_again_whatever_its_time_says(tmp_path):
    path, now = tmp_path / "keys", [0.0]
    path.write_text(f"other:1:{OTHER_KEY}\n")
    ring = KeyFile(path, clock=lambda: now[0])
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_text(f"other:1:{OTHER_KEY[::-1]}\n")
    os.utime(path, ns=times)  # as `cp --preserve` and `rsync --times` do
    now[0] += RELOAD_S
    assert ring.caller(OTHER_KEY) is None
    assert ring.caller(OTHER_KEY[::-1]) is not None


def test_keys_come_from_a_file_or_from_the_environment(tmp_path):
    path = tmp_path / "keys"
    path.write_text(KEY_FILE)
    assert open_key_ring(None, {}) is None
    for ring in (open_key_ring(path, {}), open_key_ring(None, {KEYS_VARIABLE: KEY_FILE})):
        assert ring is not None
        assert ring.caller(SMALL_KEY) == Caller("small", 1.0)
    with pytest.raises(InvalidConfigError):
        open_key_ring(path, {KEYS_VARIABLE: KEY_FILE})
    with pytest.raises(InvalidConfigError, match="cannot read"):
        open_key_ring(tmp_path / "missing", {})
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfigError, match="UTF-8"):
        open_key_ring(path, {})
