import logging
import os
import threading

import numpy as np
import pytest

from tokbridge.modes import Routing
from tokbridge_teacher.routing.disk_cache import RoutingCache, pair_key
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.routing.router import Router


@pytest.fixture
def pair(teacher_profile, student_profile):
    return teacher_profile.vocabulary, student_profile.vocabulary


def compiled(pair, folder, max_bytes=1 << 30):
    return compile_pair(*pair, Routing.GREEDY, student_encoder=None, cache_folder=folder, max_cache_bytes=max_bytes)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "its end cut": lambda content: content[:-30],
    "one bit in the middle": flipped,
    "garbage": lambda content: os.urandom(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_found_and_made_anew(damage, pair, tmp_path, caplog):
    first = compiled(pair, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    with caplog.at_level(logging.WARNING):
        again = compiled(pair, tmp_path)
    assert not again.statistics.from_cache
    assert "damaged" in caplog.text
    np.testing.assert_array_equal(again.phi, first.phi)
    assert compiled(pair, tmp_path).statistics.from_cache


def test_numbers_that_were_changed_under_a_right_zip_checksum_are_found(pair, tmp_path):
    """φ within range and of the right shape, in a file that is itself in order."""
    first = compiled(pair, tmp_path)
    (path,) = tmp_path.iterdir()
    with np.load(path) as arrays:
        kept = dict(arrays)
    kept["phi"] = kept["phi"][::-1].copy()
    np.savez(path, **kept)
    again = compiled(pair, tmp_path)
    assert not again.statistics.from_cache
    np.testing.assert_array_equal(again.phi, first.phi)


def test_a_file_under_the_name_of_another_pair_is_found(pair, tmp_path):
    teacher, student = pair
    compiled(pair, tmp_path)
    (path,) = tmp_path.iterdir()
    other = pair_key(student, student, Router(student, Routing.GREEDY, None))
    path.rename(tmp_path / f"{other}.npz")
    assert RoutingCache(tmp_path).load(other, teacher, student) is None


def test_the_folder_stays_within_its_bound_and_keeps_what_is_used(pair, tmp_path):
    teacher, student = pair
    routes = RoutingCache(tmp_path / "measure")
    tables = compiled(pair, tmp_path / "measure")
    (measured,) = (tmp_path / "measure").iterdir()
    size = measured.stat().st_size
    key = measured.stem
    stored = routes.load(key, teacher, student)
    folder = tmp_path / "bounded"
    cache = RoutingCache(folder, max_bytes=3 * size)
    names = [key, *(f"{number:064x}" for number in range(6))]
    for age, name in enumerate(names):
        cache.store(name, stored)
        for place, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)):
            os.utime(path, (1000 + 10 * age + place, 1000 + 10 * age + place))
        assert cache.load(key, teacher, student) is not None, "used at every step, never dropped"
        assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * size
    assert {path.stem for path in folder.iterdir()} == {key, *names[-2:]}
    np.testing.assert_array_equal(tables.phi, cache.load(key, teacher, student).phi)


def test_a_bound_below_one_file_keeps_nothing(pair, tmp_path):
    assert not compiled(pair, tmp_path, max_bytes=10).statistics.from_cache
    assert list(tmp_path.iterdir()) == []


def test_what_killed_processes_left_is_removed(pair, tmp_path):
    (tmp_path / "old.tmp").write_bytes(b"x")
    (tmp_path / "new.tmp").write_bytes(b"x")
    os.utime(tmp_path / "old.tmp", (1, 1))
    compiled(pair, tmp_path)
    assert {path.name for path in tmp_path.glob("*.tmp")} == {"new.tmp"}


def test_a_folder_that_cannot_be_written_does_no_harm(pair, tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        assert compiled(pair, tmp_path / "file").phi.size == pair[0].size
    assert "not kept" in caplog.text


def test_readers_see_whole_files_while_others_write(pair, tmp_path):
    teacher, student = pair
    key = pair_key(teacher, student, Router(student, Routing.GREEDY, None))
    cache = RoutingCache(tmp_path)
    compiled(pair, tmp_path)
    stored = cache.load(key, teacher, student)
    writers = [threading.Thread(target=lambda: [cache.store(key, stored) for _ in range(20)]) for _ in range(3)]
    for writer in writers:
        writer.start()
    read = [cache.load(key, teacher, student) is not None for _ in range(40)]
    for writer in writers:
        writer.join()
    assert all(read)
