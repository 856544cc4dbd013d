"""Micro-batches: every sample once, within the budget, as many on every rank."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokbridge_trainer.micro_batches import balanced_shares, pack_micro_batches, plan_micro_batches, rank_micro_batches

sample_lengths = st.lists(st.integers(1, 50), max_size=40)


@given(sample_lengths, st.integers(1, 120))
def test_every_sample_once_and_padded_size_within_the_budget(lengths, budget):
    batches = plan_micro_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_equal_lengths_are_packed_full_and_in_order():
    assert plan_micro_batches([5, 5, 5, 5, 5], 10) == [[0, 1], [2, 3], [4]]


@given(sample_lengths, st.integers(1, 120))
def test_every_sample_once_and_packed_size_within_the_budget(lengths, budget):
    batches = pack_micro_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    sizes = [sum(lengths[i] for i in batch) for batch in batches]
    assert all(len(batch) == 1 or size <= budget for batch, size in zip(batches, sizes, strict=True))
    # Of any two, the later one holds a sample that found no room in the earlier.
    assert all(a + b > budget for a, b in itertools.pairwise(sizes))


def test_gaps_are_filled_with_shorter_samples():
    assert pack_micro_batches([7, 6, 3, 4], 10) == [[0, 2], [1, 3]]


@given(sample_lengths, st.integers(1, 5))
def test_shares_hold_every_sample_once_and_no_rank_much_more_than_its_part(lengths, ranks):
    shares = balanced_shares(lengths, ranks)
    assert sorted(i for share in shares for i in share) == list(range(len(lengths)))
    loads = [sum(lengths[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)


@given(sample_lengths, st.integers(1, 120), st.integers(1, 4), st.booleans())
def test_ranks_have_equally_many_micro_batches_and_share_all_samples(lengths, budget, ranks, packed):
    plans = [rank_micro_batches(lengths, budget, rank=r, ranks=ranks, packed=packed) for r in range(ranks)]
    assert len({len(plan) for plan in plans}) == 1
    assert sorted(i for plan in plans for batch in plan for i in batch) == list(range(len(lengths)))


@pytest.mark.parametrize("packed", [False, True])
def test_a_rank_without_samples_runs_empty_micro_batches(packed):
    assert rank_micro_batches([4], 10, rank=1, ranks=2, packed=packed) == [[]]
    assert rank_micro_batches([], 10, rank=1, ranks=2, packed=packed) == []
