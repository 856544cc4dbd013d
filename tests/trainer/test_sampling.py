"""Sampling: the right distribution, one stream a sample, nothing forbidden."""

import numpy as np
import pytest
import torch

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_trainer.config_sections import SamplingConfig
from tokbridge_trainer.rollout.sampling import InverseCdfSampler, forbidden_tokens, sampling_processors, uniforms_for
from tokbridge_trainer.samples import SampleKey

NOTHING_FORBIDDEN = torch.zeros(6, dtype=torch.bool)


def drawn(scores_V: torch.Tensor, uniforms: np.ndarray, sampling: SamplingConfig, forbidden=NOTHING_FORBIDDEN):
    """Ids that the processors choose, one for each uniform number."""
    uniforms_BT = torch.from_numpy(uniforms)[:, None]
    prompt = torch.zeros(len(uniforms), 3, dtype=torch.int64)
    scores_BV = scores_V.expand(len(uniforms), -1).clone()
    return sampling_processors(sampling, forbidden, uniforms_BT, 3)(prompt, scores_BV).argmax(-1)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (SamplingConfig(), [0.5, 0.2, 0.15, 0.1, 0.05, 0.0]),
        (SamplingConfig(top_k=2), [5 / 7, 2 / 7, 0, 0, 0, 0]),
        (SamplingConfig(top_p=0.6), [5 / 7, 2 / 7, 0, 0, 0, 0]),
        (SamplingConfig(min_p=0.25), [0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0, 0]),
        (SamplingConfig(temperature=0.5), np.array([0.25, 0.04, 0.0225, 0.01, 0.0025, 0]) / 0.325),
    ],
)
def test_draws_follow_the_warped_distribution(sampling, expected):
    scores_V = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05, 0.0]).log()
    grid = (np.arange(20_000) + 0.5) / 20_000
    counts = torch.bincount(drawn(scores_V, grid, sampling), minlength=6) / 20_000
    np.testing.assert_allclose(counts, expected, atol=1e-4)


def test_temperature_zero_takes_the_likeliest_that_is_allowed():
    forbidden = torch.tensor([False, True, False, False, False, False])
    scores_V = torch.tensor([1.0, 9.0, 3.0, 2.0, 0.0, 0.0])
    assert drawn(scores_V, np.array([0.9]), SamplingConfig(temperature=0.0), forbidden).tolist() == [2]


def test_the_ends_of_the_unit_interval_never_draw_an_impossible_token():
    scores_V = torch.tensor([-torch.inf, 0.0, -torch.inf, 1.0, -torch.inf, -torch.inf])
    uniforms = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert drawn(scores_V, uniforms, SamplingConfig()).tolist() == [1, 3]


def test_each_token_uses_its_own_uniform():
    sampler = InverseCdfSampler(torch.tensor([[0.1, 0.9]]), prompt_length=2)
    scores = torch.zeros(1, 2)
    chosen = [sampler(torch.zeros(1, length, dtype=torch.int64), scores).argmax().item() for length in (2, 3)]
    assert chosen == [0, 1]


def test_streams_belong_to_samples_and_not_to_batches():
    keys = [SampleKey(1, 2, 3), SampleKey(1, 2, 4)]
    together = uniforms_for(5, keys, 8)
    np.testing.assert_array_equal(together[1], uniforms_for(5, keys[1:], 8)[0])
    assert (together[0] != together[1]).all()
    assert (uniforms_for(6, keys, 8) != together).all()


def test_byteless_ids_are_forbidden_but_stop_tokens():
    vocabulary = ByteVocabulary((b"a", None, None, b"b", None))
    assert forbidden_tokens(vocabulary, frozenset({2})).tolist() == [False, True, False, False, True]
