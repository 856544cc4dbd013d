"""φ, φ_r, byte order, the cache on disk and the statistics, against enumeration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.brute_force import greedy_phi
from support.target_problems import OddEncoder, odd_phi
from tokbridge.errors import UnsupportedModeError
from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.byte_order import ByteOrder
from tokbridge_teacher.routing.pair_tables import compile_pair
from tokbridge_teacher.routing.router import UNMAPPED
from tokbridge_teacher.routing.statistics import with_encoder_counts

TOKEN = st.text("ab\xff", min_size=1, max_size=4).map(lambda text: text.encode("latin1"))
TOKENS = st.lists(st.one_of(st.none(), TOKEN), min_size=1)


def compile_small(teacher, student, routing="greedy", cache_folder=None):
    student = ByteVocabulary(tuple(student))
    encoder = OddEncoder(student)
    return compile_pair(
        ByteVocabulary(tuple(teacher)), student, routing, student_encoder=encoder, cache_folder=cache_folder
    )


@given(teacher=TOKENS, student=TOKENS, routing=st.sampled_from(["greedy", "bpe"]))
def test_phi_is_what_enumeration_gives(teacher, student, routing):
    tables = compile_small(teacher, student, routing)
    phi = greedy_phi(student) if routing == "greedy" else odd_phi(student, OddEncoder(tables.student))
    for token_id, token in enumerate(teacher):
        expected = None if token is None else phi(token)
        assert tables.phi[token_id] == (UNMAPPED if expected is None else expected)


@given(teacher=TOKENS, student=TOKENS, prefix=st.text("ab\xff", min_size=1, max_size=2))
def test_phi_r_is_what_enumeration_gives(teacher, student, prefix):
    prefix = prefix.encode("latin1")
    tables = compile_small(teacher, student)
    routes = tables.interior(prefix)
    ids = tables.teacher_order.ids_by_rank[routes.low : routes.high].tolist()
    assert sorted(ids) == [i for i, token in enumerate(teacher) if token is not None and token.startswith(prefix)]
    for token_id, slot in zip(ids, routes.slots.tolist(), strict=True):
        expected = greedy_phi(student)(teacher[token_id][len(prefix) :])
        assert (None if slot == len(routes.cells) else routes.cells[slot]) == expected


@given(tokens=TOKENS, prefix=st.text("ab\xff", max_size=3))
def test_tokens_that_start_with_a_prefix_are_one_range(tokens, prefix):
    prefix = prefix.encode("latin1")
    order = ByteOrder(ByteVocabulary(tuple(tokens)))
    low, high = order.prefix_range(prefix)
    inside = set(order.ids_by_rank[low:high].tolist())
    assert inside == {i for i, token in enumerate(tokens) if token is not None and token.startswith(prefix)}
    assert (order.rank_by_id[order.ids_by_rank] == np.arange(len(order.strings))).all()


def test_slots_of_cells():
    routes = compile_small([b"aa", b"ab", b"a"], [b"b", b"a", b"c"]).interior(b"a")
    assert routes.cells.tolist() == [0, 1]
    assert routes.slots_of(np.array([2, 1, 0, 1], np.int32)).tolist() == [-1, 1, 0, 1]


def test_bpe_without_an_encoder_is_refused():
    vocabulary = ByteVocabulary((b"a",))
    with pytest.raises(UnsupportedModeError):
        compile_pair(vocabulary, vocabulary, "bpe", student_encoder=None, cache_folder=None)


def test_statistics():
    teacher, student = [b"a", b"ab", b"abb", b"c", None], [b"a", b"ab", b"aa", None]
    tables = compile_small(teacher, student)
    statistics = tables.statistics
    assert (statistics.teacher_content_tokens, statistics.identical) == (4, 2)
    assert (statistics.shortened, statistics.unmapped, statistics.from_cache) == (1, 1, False)
    full = with_encoder_counts(statistics, tables.teacher, tables.student, tables.phi, OddEncoder(tables.student))
    assert full.not_what_the_encoder_emits == 2  # `ab` and `abb` begin with `a` in that encoder
    assert full.routed_to_dead_tokens == 2  # `ab`, which it never emits


@pytest.mark.parametrize("routing", ["greedy", "bpe"])
def test_cache_gives_the_same_tables(tmp_path, routing):
    teacher, student = [b"a", b"ab", b"abb", None], [b"a", b"ab", None]
    compiled = compile_small(teacher, student, routing, tmp_path)
    cached = compile_small(teacher, student, routing, tmp_path)
    assert (compiled.statistics.from_cache, cached.statistics.from_cache) == (False, True)
    assert cached.phi.tolist() == compiled.phi.tolist()
    assert cached.teacher_order.strings == compiled.teacher_order.strings
    assert len(list(tmp_path.iterdir())) == 1


def test_cache_tells_pairs_and_modes_apart(tmp_path):
    compile_small([b"a", b"ab"], [b"a"], "greedy", tmp_path)
    compile_small([b"a", b"ab"], [b"a"], "bpe", tmp_path)
    compile_small([b"a", b"ab", None], [b"a"], "greedy", tmp_path)
    duplicates = ByteVocabulary((b"a", b"a"), np.array([1, 1], np.int32))
    compile_pair(duplicates, duplicates, "greedy", student_encoder=None, cache_folder=tmp_path)
    lowest = ByteVocabulary((b"a", b"a"))
    tables = compile_pair(lowest, lowest, "greedy", student_encoder=None, cache_folder=tmp_path)
    assert tables.phi.tolist() == [0, 0]
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "foreign"])
def test_a_damaged_cache_file_is_written_anew(tmp_path, damage):
    teacher, student = [b"a", b"ab", b"abb", None], [b"a", b"ab", None]
    compiled = compile_small(teacher, student, "greedy", tmp_path)
    (path,) = tmp_path.iterdir()
    raw = bytearray(path.read_bytes())
    if damage == "flipped":
        raw[len(raw) // 3] ^= 0xFF
        path.write_bytes(raw)
    elif damage == "foreign":
        np.savez(path, phi=np.array([9, 9, 9, 9], np.int32), teacher_ids_by_rank=np.arange(3, dtype=np.int32))
    else:
        path.write_bytes(b"" if damage == "empty" else raw[: len(raw) // 2])
    again = compile_small(teacher, student, "greedy", tmp_path)
    assert again.phi.tolist() == compiled.phi.tolist()
    assert not again.statistics.from_cache
    assert compile_small(teacher, student, "greedy", tmp_path).statistics.from_cache
