"""The choice of a replica: pure, so every rule is tested by itself."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tokbridge.client.selection import LOAD_SLACK, Candidate, Choice, choose

KEYS = [index.to_bytes(4, "little") for index in range(600)]


def replica(name, in_flight=0, ready_at_s=float("-inf"), closed=True):
    return Candidate(name, in_flight, ready_at_s, closed)


THREE = [replica("a"), replica("b"), replica("c")]


def test_one_key_goes_to_one_replica_whatever_the_order():
    for key in KEYS[:50]:
        assert choose(THREE, key, 0.0) == choose(THREE[::-1], key, 0.0)


def test_the_keys_are_shared_out_evenly():
    counts = Counter(choose(THREE, key, 0.0).name for key in KEYS)
    assert all(150 < counts[name] < 250 for name in "abc")


def test_only_the_keys_of_a_replica_that_fails_move():
    for key in KEYS[:100]:
        before = choose(THREE, key, 0.0).name
        after = choose(THREE, key, 0.0, failed={"b"}).name
        assert (after == before) == (before != "b")


def test_a_replica_with_more_than_its_share_passes_calls_on():
    key = next(key for key in KEYS if choose(THREE, key, 0.0).name == "a")
    assert choose([replica("a", in_flight=LOAD_SLACK), *THREE[1:]], key, 0.0).name == "a"
    assert choose([replica("a", in_flight=40), *THREE[1:]], key, 0.0).name != "a"


def test_closed_comes_before_half_open_before_failed():
    half_open = replica("b", ready_at_s=0.0, closed=False)
    for key in KEYS[:20]:
        assert choose([replica("a"), half_open], key, 1.0).name == "a"
        assert choose([replica("a"), half_open], key, 1.0, failed={"a"}).name == "b"
        assert choose([replica("a"), replica("b")], key, 1.0, failed={"a", "b"}).name in "ab"


def test_without_a_replica_that_may_be_asked_the_first_to_be_is_waited_for():
    candidates = [replica("a", ready_at_s=9.0), replica("b", ready_at_s=7.5, closed=False)]
    assert choose(candidates, KEYS[0], 5.0) == Choice("b", 2.5)


def test_a_wait_that_one_replica_asked_for_is_not_waited_where_another_is_free():
    candidates = [replica("a", ready_at_s=9.0), replica("b")]
    assert {choose(candidates, key, 5.0) for key in KEYS[:20]} == {Choice("b", 0.0)}


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6), st.binary(min_size=1, max_size=16))
def test_some_replica_is_always_free_enough(loads, key):
    candidates = [replica(f"r{index}", load) for index, load in enumerate(loads)]
    chosen = choose(candidates, key, 0.0)
    assert chosen.wait_s == 0
    load = loads[int(chosen.name[1:])]
    assert load <= 1.25 * (sum(loads) + 1) / len(loads) + 1 + LOAD_SLACK


def test_all_samples_of_a_prompt_stay_together_while_little_goes_on():
    candidates = list(THREE)
    names = set()
    for _ in range(LOAD_SLACK):
        name = choose(candidates, b"one prompt", 0.0).name
        names.add(name)
        candidates = [replace(c, in_flight=c.in_flight + (c.name == name)) for c in candidates]
    assert len(names) == 1
