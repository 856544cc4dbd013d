import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.dense_loss import DenseRow, dense_loss
from support.loss_cases import dense_row, random_dense_rows, target_tensors
from tokbridge.errors import InvalidConfigError, InvalidDataError, NonFiniteLogitsError, TokenIdOutOfRangeError
from tokbridge_trainer.loss import bpm_loss

BETAS = [0.0, 0.1, 0.5, 0.9, 1.0]
SIZE = 24


def head_for(logits_RV: torch.Tensor, dtype=torch.float64):
    """Hidden states and head whose product is exactly the given logits: one hidden unit a row."""
    hidden = torch.eye(len(logits_RV), dtype=dtype)
    return hidden.requires_grad_(), logits_RV.to(dtype).t().contiguous().requires_grad_()


def assert_equals_dense(logits_RV: torch.Tensor, rows: list[DenseRow], beta: float, dtype=torch.float64, **options):
    """Loss, divergences and all gradients against the float64 reference, 1e-5 relative."""
    bias = torch.where(logits_RV.isfinite(), 0.0, -math.inf).amin(0).to(dtype)
    finite_RV = torch.where(logits_RV.isfinite(), logits_RV, 0.0)
    hidden, weight = head_for(finite_RV, dtype)
    output = bpm_loss(hidden, weight, target_tensors(rows), beta=beta, normalizer=7.0, head_bias=bias, **options)
    output.loss.backward()
    reference_hidden, reference_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    loss, divergences = dense_loss(
        reference_hidden @ reference_weight.t() + bias.double(), rows, beta=beta, normalizer=7.0
    )
    loss.backward()
    torch.testing.assert_close(output.loss.double(), loss, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(output.row_divergence, divergences, rtol=1e-5, atol=1e-12)
    for ours, theirs in ((hidden, reference_hidden), (weight, reference_weight)):
        assert ours.grad is not None
        assert theirs.grad is not None
        noise = 1e-12 if dtype == torch.float64 else 1e-5
        atol = noise * float(theirs.grad.abs().max()) + 1e-12
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=atol)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    beta=st.sampled_from(BETAS) | st.floats(0.01, 0.99),
    spread=st.sampled_from([0.1, 3.0, 30.0]),
)
def test_random_rows_equal_dense_reference(seed: int, beta: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    rows = random_dense_rows(rng, int(rng.integers(1, 9)), SIZE)
    logits = torch.from_numpy(rng.normal(size=(len(rows), SIZE)) * spread)
    assert_equals_dense(logits, rows, beta, chunk_rows=3)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("margin", [27.0, 90.0, 1000.0])
@pytest.mark.parametrize(
    "row",
    [
        dense_row([3], [1.0]),
        dense_row([4], [1.0]),
        dense_row([3], [0.0]),
        dense_row([3, 4], [0.0, 0.75]),
        dense_row([3, 4, 5], [1 - 1e-6, 1e-6, 0.0]),
        dense_row([3], [0.9], is_stop=True),
        dense_row([4], [0.9], is_stop=True),
        dense_row([4], [1.0], is_stop=True),
    ],
    ids=["t=1", "p→0", "residual 1", "emitted mass 0", "confident", "stop p→1", "stop p→0", "stop b=1"],
)
def test_large_margins_equal_dense_reference(row: DenseRow, margin: float, beta: float) -> None:
    logits = torch.zeros(1, SIZE, dtype=torch.float64)
    logits[0, 3] = margin
    assert_equals_dense(logits, [row], beta)
    assert_equals_dense(logits, [row], beta, dtype=torch.float32)


def test_gradient_at_margin_keeps_relative_precision() -> None:
    """Forward KL with t = 1: the gradient in the top logit is −(1 − p), in the others p_v, both of order e⁻⁹⁰."""
    logits = torch.zeros(1, 3, dtype=torch.float64)
    logits[0, 0] = 90.0
    hidden, weight = head_for(logits)
    bpm_loss(hidden, weight, target_tensors([dense_row([0], [1.0])]), beta=0.0, normalizer=1.0).loss.backward()
    small = math.exp(-90.0)
    assert weight.grad is not None
    torch.testing.assert_close(
        weight.grad[:, 0], torch.tensor([-2 * small, small, small], dtype=torch.float64), rtol=1e-9, atol=0.0
    )


@pytest.mark.parametrize("beta", BETAS)
def test_padded_head_rows_contribute_nothing(beta: float) -> None:
    """−inf logits inside a cell of mass 0 and among the rest; also a row that leaves no finite logit to ∅."""
    logits = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[:, 4:] = -math.inf
    rows = [
        dense_row([1, 5], [0.6, 0.0]),
        dense_row([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.4]),
        dense_row([2], [0.3], is_stop=True),
    ]
    rows[1] = DenseRow(rows[1].ids, rows[1].log_probs, -math.inf)
    assert_equals_dense(logits, rows, beta)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("row", [dense_row([1, 5], [0.6, 0.3]), dense_row([0, 1, 2, 3], [0.1, 0.2, 0.3, 0.1])])
def test_mass_on_impossible_token_is_refused(row: DenseRow, beta: float) -> None:
    bias = torch.tensor([0.0] * 4 + [-math.inf] * 2)
    hidden, weight = torch.ones(1, 2), torch.ones(6, 2)
    with pytest.raises(NonFiniteLogitsError, match="-inf"):
        bpm_loss(hidden, weight, target_tensors([row]), beta=beta, normalizer=1.0, head_bias=bias)
    masked = DenseRow(row.ids, row.log_probs, row.log_residual, weight=0.0)
    assert bpm_loss(hidden, weight, target_tensors([masked]), beta=beta, normalizer=1.0, head_bias=bias).loss == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("token", [0, 1])
def test_broken_logits_are_refused(value: float, token: int) -> None:
    bias = torch.zeros(4)
    bias[token] = value
    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        bpm_loss(
            torch.ones(1, 2), torch.ones(4, 2), target_tensors([dense_row([1], [0.5])]), normalizer=1.0, head_bias=bias
        )


@pytest.mark.parametrize("rows", [[], [dense_row([1], [0.5], weight=0.0)] * 3], ids=["none", "all masked"])
def test_no_live_rows_give_zero_loss_and_zero_gradients(rows: list[DenseRow]) -> None:
    hidden = torch.randn(len(rows), 4, requires_grad=True)
    weight = torch.randn(SIZE, 4, requires_grad=True)
    loss = bpm_loss(hidden, weight, target_tensors(rows), normalizer=5.0).loss
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden.grad.shape == hidden.shape
    assert not hidden.grad.any()
    assert not weight.grad.any()


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_gradcheck(softcap: float | None) -> None:
    rng = np.random.default_rng(1)
    targets = target_tensors(random_dense_rows(rng, 5, 9))
    inputs = [torch.from_numpy(rng.normal(size=shape)).requires_grad_() for shape in ((5, 3), (9, 3), (9,))]

    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (
            3.0
            * bpm_loss(
                hidden,
                weight,
                targets,
                beta=0.3,
                normalizer=2.0,
                head_bias=bias,
                logit_scale=1.7,
                softcap=softcap,
                chunk_rows=2,
            ).loss
        )

    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("chunk_rows", [1, 2, 5, 100])
def test_chunk_size_changes_nothing(chunk_rows: int, beta: float) -> None:
    rng = np.random.default_rng(2)
    targets = target_tensors(random_dense_rows(rng, 11, SIZE))
    results = []
    for rows in (None, chunk_rows):
        hidden, weight = (
            torch.from_numpy(np.random.default_rng(3).normal(size=s)).requires_grad_() for s in ((11, 4), (SIZE, 4))
        )
        output = bpm_loss(hidden, weight, targets, beta=beta, normalizer=9.0, chunk_rows=rows)
        output.loss.backward()
        results.append((output.loss.detach(), output.row_divergence, output.row_argmax_ids, hidden.grad, weight.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-14)


def test_stop_row_gradient_tends_to_minus_stop_mass() -> None:
    gradients = []
    for logit in (-10.0, -30.0, -60.0):
        logits = torch.zeros(1, SIZE)
        logits[0, 2] = logit
        hidden, weight = head_for(logits, torch.float32)
        bpm_loss(hidden, weight, target_tensors([dense_row([2], [0.3], is_stop=True)]), normalizer=1.0).loss.backward()
        assert weight.grad is not None
        gradients.append(float(weight.grad[2, 0]))
    assert gradients == pytest.approx([-0.3, -0.3, -0.3], rel=1e-4)
    assert gradients[-1] == pytest.approx(-0.3, rel=1e-6)


def test_student_equal_to_teacher_has_no_divergence() -> None:
    logits = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(5)) * 8
    probs = logits.double().softmax(1)
    rows = [dense_row([1, 2, 3], p[1:4].tolist()) for p in probs]
    for beta in BETAS:
        output = bpm_loss(*head_for(logits, torch.float32), target_tensors(rows), beta=beta, normalizer=1.0)
        assert float(output.row_divergence.abs().max()) < 1e-9


def test_row_facts() -> None:
    rng = np.random.default_rng(6)
    rows = random_dense_rows(rng, 8, SIZE)
    logits = torch.from_numpy(rng.normal(size=(8, SIZE)) * 4)
    emitted = torch.tensor([(row.ids or [0])[0] for row in rows])
    output = bpm_loss(*head_for(logits), target_tensors(rows), normalizer=1.0, emitted_ids=emitted)
    log_probs = logits.log_softmax(1)
    outside = [[v for v in range(SIZE) if v not in row.ids] for row in rows]
    assert output.row_emitted_log_probs is not None
    torch.testing.assert_close(output.row_emitted_log_probs, log_probs.gather(1, emitted[:, None])[:, 0])
    torch.testing.assert_close(output.row_argmax_ids, logits.argmax(1))
    torch.testing.assert_close(
        output.row_log_residual, torch.stack([log_probs[i, ids].logsumexp(0) for i, ids in enumerate(outside)])
    )
    assert not any(fact.requires_grad for fact in (output.row_divergence, output.row_emitted_log_probs))


def test_without_gradients_none_are_made() -> None:
    hidden, weight = torch.randn(3, 4, requires_grad=True), torch.randn(SIZE, 4, requires_grad=True)
    targets = target_tensors([dense_row([1], [0.5])] * 3)
    with torch.no_grad():
        assert not bpm_loss(hidden, weight, targets, normalizer=1.0).loss.requires_grad
    frozen = bpm_loss(hidden, weight.detach(), targets, normalizer=1.0).loss
    frozen.backward()
    trained = bpm_loss(other := hidden.detach().requires_grad_(), weight, targets, normalizer=1.0).loss
    trained.backward()
    torch.testing.assert_close(hidden.grad, other.grad)


def test_tied_embeddings_add_both_gradients() -> None:
    weight = torch.randn(SIZE, 4, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([3, 5, 5])
    rows = [dense_row([1, 2], [0.5, 0.2])] * 3
    bpm_loss(weight[ids], weight, target_tensors(rows), normalizer=2.0).loss.backward()
    twin = weight.detach().requires_grad_()
    dense_loss(twin[ids] @ twin.t(), rows, beta=0.5, normalizer=2.0)[0].backward()
    torch.testing.assert_close(weight.grad, twin.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("hidden_dtype", "weight_dtype"), [(torch.bfloat16,) * 2, (torch.bfloat16, torch.float32), (torch.float16,) * 2]
)
def test_half_precision_operands(hidden_dtype: torch.dtype, weight_dtype: torch.dtype, monkeypatch) -> None:
    """Values are exact for the rounded operands; gradients are rounded once, at the end."""
    monkeypatch.setattr("tokbridge_trainer.lm_head._BLOCK_ROWS", 7)
    rng = np.random.default_rng(8)
    rows = random_dense_rows(rng, 6, SIZE)
    hidden, weight = torch.from_numpy(rng.normal(size=(6, 4))), torch.from_numpy(rng.normal(size=(SIZE, 4)))
    hidden, weight = hidden.to(hidden_dtype).requires_grad_(), weight.to(weight_dtype).requires_grad_()
    output = bpm_loss(hidden, weight, target_tensors(rows), normalizer=3.0, chunk_rows=2)
    output.loss.backward()
    twins = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    loss, divergences = dense_loss(twins[0] @ twins[1].t(), rows, beta=0.5, normalizer=3.0)
    loss.backward()
    torch.testing.assert_close(output.loss.double(), loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(output.row_divergence, divergences, rtol=1e-5, atol=1e-9)
    for ours, twin in zip((hidden, weight), twins, strict=True):
        assert ours.grad is not None
        assert ours.grad.dtype == ours.dtype
        torch.testing.assert_close(ours.grad.double(), twin.grad, rtol=5e-3, atol=1e-6)


def test_wrong_arguments_are_typed_errors() -> None:
    hidden, weight, targets = torch.ones(1, 2), torch.ones(4, 2), target_tensors([dense_row([3], [0.5])])
    with pytest.raises(InvalidConfigError):
        bpm_loss(hidden, weight, targets, normalizer=0.0)
    for beta, skew in ((-0.1, 0.1), (1.5, 0.1), (math.nan, 0.1), (0.5, 0.0)):
        with pytest.raises(InvalidConfigError):
            bpm_loss(hidden, weight, targets, normalizer=1.0, beta=beta, skew=skew)
    with pytest.raises(InvalidDataError):
        bpm_loss(torch.ones(2, 2), weight, targets, normalizer=1.0)
    with pytest.raises(TokenIdOutOfRangeError):
        bpm_loss(hidden, weight[:3], targets, normalizer=1.0)
