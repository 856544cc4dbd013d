"""Micro-batches: every sample once, within the budget."""

from hypothesis import given
from hypothesis import strategies as st

from tokbridge_trainer.micro_batches import plan_micro_batches


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_every_sample_once_and_padded_size_within_the_budget(lengths, budget):
    batches = plan_micro_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


def test_equal_lengths_are_packed_full_and_in_order():
    assert plan_micro_batches([5, 5, 5, 5, 5], 10) == [[0, 1], [2, 3], [4]]
