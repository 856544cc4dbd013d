"""Column folds and row reductions against float64."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokbridge_teacher.routing.fold import Fold
from tokbridge_teacher.targets.reductions import block_sum, top_columns


@given(
    columns=st.lists(st.integers(-1, 9), max_size=60),
    rows=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_fold_sums_the_columns_of_each_group(columns, rows, seed):
    x = torch.rand(rows, len(columns), generator=torch.Generator().manual_seed(seed))
    expected = np.zeros((rows, 10))
    for index, column in enumerate(columns):
        if column >= 0:
            expected[:, column] += x[:, index].numpy()
    if columns:
        assert np.allclose(Fold(np.array(columns, int), 10, "cpu")(x).numpy(), expected, rtol=1e-6, atol=0)


def test_fold_keeps_the_precision_of_tiny_terms_in_a_large_group():
    x = torch.full((1, 100_000), 1e-7)
    folded = Fold(np.zeros(100_000, int), 1, "cpu")(x)
    assert abs(folded.item() / (100_000 * float(np.float32(1e-7))) - 1) < 1e-6


def test_block_sum_is_as_good_as_float64():
    x = torch.rand(4, 150_001, generator=torch.Generator().manual_seed(0)) ** 8
    assert torch.allclose(block_sum(x), x.double().sum(-1), rtol=1e-7, atol=0)


@settings(max_examples=40)
@given(width=st.sampled_from([0, 1, 255, 256, 1024, 4096, 5000]), k=st.integers(1, 40), seed=st.integers(0, 1000))
def test_top_columns_is_topk(width, k, seed):
    x = torch.rand(3, width, generator=torch.Generator().manual_seed(seed))
    values, columns = top_columns(x, k)
    assert torch.equal(values, torch.topk(x, min(k, width)).values)
    assert torch.equal(x.gather(1, columns), values)
