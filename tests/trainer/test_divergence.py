import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.divergence import Divergence, coarse_log_probs, unreachable_rows

BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]


def random_parts(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Log targets [4, 5] that sum to one, and coarse logits [4, 5]."""
    generator = torch.Generator().manual_seed(seed)
    spread = 10.0 ** float(torch.rand((), generator=generator) * 2 - 1)
    log_target, logits = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64) * spread
    return log_target.log_softmax(1), logits


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31), beta=st.sampled_from(BETAS))
def test_gradient_is_the_derivative(seed: int, beta: float) -> None:
    log_target, logits = random_parts(seed)
    is_stop = torch.tensor([False, True, False, False])
    divergence, logits = Divergence(beta), logits.requires_grad_()
    value, gradient = divergence(log_target, logits, is_stop)
    (expected,) = torch.autograd.grad(value.sum(), logits)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(gradient.sum(1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31), beta=st.sampled_from(BETAS))
def test_non_negative_and_zero_where_equal(seed: int, beta: float) -> None:
    log_target, logits = random_parts(seed)
    none = torch.zeros(4, dtype=torch.bool)
    value, _ = Divergence(beta)(log_target, logits, none)
    assert bool((value >= -1e-12).all())
    same, gradient = Divergence(beta)(log_target, log_target + 3.0, none)
    torch.testing.assert_close(same, torch.zeros_like(same), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
def test_padding_parts_change_nothing(beta: float) -> None:
    log_target, logits = random_parts(7)
    is_stop = torch.tensor([False, False, True, False])
    padding = torch.full((4, 3), -math.inf, dtype=torch.float64)
    value, gradient = Divergence(beta)(log_target, logits, is_stop)
    padded = Divergence(beta)(torch.cat([padding, log_target], 1), torch.cat([padding, logits], 1), is_stop)
    torch.testing.assert_close(padded, (value, torch.cat([torch.zeros(4, 3, dtype=torch.float64), gradient], 1)))


def test_known_values() -> None:
    """t = (¾, ¼) against p̃ = (½, ½), by hand."""
    log_target, logits = torch.tensor([[0.75, 0.25]], dtype=torch.float64).log(), torch.zeros(1, 2, dtype=torch.float64)
    none = torch.zeros(1, dtype=torch.bool)
    forward = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    shannon = 0.5 * (0.75 * math.log(1.2) + 0.25 * math.log(2 / 3)) + 0.25 * (math.log(0.8) + math.log(4 / 3))
    reverse = 0.5 * (math.log(0.5 / 0.725) + math.log(0.5 / 0.275))
    for beta, expected in ((0.0, forward), (0.5, shannon), (1.0, reverse)):
        assert float(Divergence(beta)(log_target, logits, none)[0]) == pytest.approx(expected, rel=1e-12)
    assert float(Divergence(1.0)(log_target, logits, ~none)[0]) == pytest.approx(forward, rel=1e-12)


def test_log_probability_near_one_keeps_its_precision() -> None:
    log_probs, _ = coarse_log_probs(torch.tensor([[0.0, 90.0, 0.0]], dtype=torch.float64))
    assert float(log_probs[0, 1]) == pytest.approx(-2 * math.exp(-90), rel=1e-12)


def test_unreachable_rows() -> None:
    inf = math.inf
    log_target = torch.tensor([[0.0, -inf], [-inf, 0.0], [-0.7, -0.7]])
    logits = torch.tensor([[1.0, -inf], [1.0, -inf], [1.0, 1.0]])
    assert unreachable_rows(log_target, logits).tolist() == [False, True, False]


@pytest.mark.parametrize(("beta", "skew"), [(-0.01, 0.1), (1.01, 0.1), (math.nan, 0.1), (0.5, 0.0), (0.5, 1.0)])
def test_out_of_range_is_refused(beta: float, skew: float) -> None:
    with pytest.raises(InvalidConfigError):
        Divergence(beta, skew)
