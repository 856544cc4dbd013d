"""The loss from given logits, against the dense float64 reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_loss import dense_loss
from support.loss_cases import dense_row, random_dense_rows, target_tensors
from tokbridge.errors import InvalidDataError, NonFiniteLogitsError, TokenIdOutOfRangeError
from tokbridge_trainer.sparse_divergence import sparse_divergence

SIZE = 24


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    beta=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_random_rows_equal_the_dense_reference(seed: int, beta: float, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    rows = random_dense_rows(rng, int(rng.integers(1, 9)), SIZE)
    logits = torch.from_numpy(rng.normal(size=(len(rows), SIZE)) * 3.0).to(dtype).requires_grad_()
    reference = logits.detach().double().requires_grad_()
    before = logits.detach().clone()
    output = sparse_divergence(logits, target_tensors(rows), normalizer=7.0, beta=beta, chunk_rows=3)
    (2.0 * output.loss).backward()
    loss, divergences = dense_loss(reference, rows, beta=beta, normalizer=7.0)
    (2.0 * loss).backward()
    torch.testing.assert_close(output.loss.double(), loss.detach(), rtol=1e-5, atol=1e-7, check_dtype=False)
    torch.testing.assert_close(output.row_divergence, divergences, rtol=1e-5, atol=1e-7)
    assert logits.grad is not None
    assert reference.grad is not None
    torch.testing.assert_close(logits.grad.double(), reference.grad, rtol=1e-5, atol=1e-7)
    assert torch.equal(logits, before)


def test_half_precision_logits_get_a_gradient_of_their_own_type() -> None:
    logits = torch.randn(2, SIZE).bfloat16().requires_grad_()
    rows = [dense_row([1, 2], [0.5, 0.25]), dense_row([3], [1.0])]
    sparse_divergence(logits, target_tensors(rows), normalizer=2.0).loss.backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16


def test_facts_of_the_emitted_tokens_and_no_gradient_where_none_is_wanted() -> None:
    logits = torch.randn(3, SIZE, dtype=torch.float64)
    rows = [dense_row([1, 2], [0.5, 0.25]), dense_row([3], [1.0]), dense_row([0], [0.1])]
    emitted = torch.tensor([2, 3, 5])
    output = sparse_divergence(logits, target_tensors(rows), normalizer=3.0, emitted_ids=emitted)
    assert output.row_emitted_log_probs is not None
    expected = logits.log_softmax(-1)[range(3), emitted]
    torch.testing.assert_close(output.row_emitted_log_probs, expected)
    assert not output.loss.requires_grad


def test_what_does_not_fit_is_refused() -> None:
    logits, targets = torch.zeros(1, SIZE), target_tensors([dense_row([SIZE - 1], [0.5])])
    with pytest.raises(InvalidDataError):
        sparse_divergence(torch.zeros(2, SIZE), targets, normalizer=1.0)
    with pytest.raises(TokenIdOutOfRangeError):
        sparse_divergence(logits[:, :-1], targets, normalizer=1.0)
    with pytest.raises(NonFiniteLogitsError):
        sparse_divergence(torch.full_like(logits, math.nan), targets, normalizer=1.0)
