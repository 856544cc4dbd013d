"""The order of data: each epoch visits everything once, and resuming needs the position only."""

from tokbridge_trainer.data_order import index_at


def test_every_epoch_is_a_permutation_of_its_own():
    epochs = [[index_at(epoch * 20 + i, 20, seed=3, shuffle=True) for i in range(20)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_seed_decides_and_positions_are_independent():
    once = [index_at(i, 20, seed=3, shuffle=True) for i in range(60)]
    assert [index_at(i, 20, seed=3, shuffle=True) for i in reversed(range(60))] == once[::-1]
    assert [index_at(i, 20, seed=4, shuffle=True) for i in range(60)] != once


def test_without_shuffling_the_order_is_that_of_the_files():
    assert [index_at(i, 3, seed=0, shuffle=False) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
