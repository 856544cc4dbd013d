"""A learner on two ranks (FSDP2, gloo) against the same learner in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from support.learner_cases import (
    CASES,
    LAST_PLAN,
    MORE_CASES,
    Outcome,
    checkpoint_root,
    make_batch,
    resume,
    run_cases,
    run_more_cases,
)
from support.process_ranks import run_on_ranks
from support.tiny_models import (
    TINY_HYBRID,
    TINY_SCALED,
    TINY_SOFTCAPPED,
    TINY_STUDENT,
    TINY_TIED,
    save_tiny_model,
)
from tokbridge_trainer.ranks import Ranks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RECIPES = {
    "student": TINY_STUDENT,
    "tied": TINY_TIED,
    "softcapped": TINY_SOFTCAPPED,
    "scaled": TINY_SCALED,
    "hybrid": TINY_HYBRID,
}
SETTINGS = CASES | MORE_CASES
ALL_CASES = [*CASES, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE_CASES)]


@pytest.fixture(scope="module")
def model_root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, recipe in RECIPES.items():
        save_tiny_model(recipe, root / name)
    return root


@pytest.fixture(scope="module")
def outcomes_of(model_root, tmp_path_factory):
    """The outcomes of a case: of one process, then of both ranks. Processes start slowly, so two run many cases."""
    known: dict[str, list[Outcome]] = {}

    def outcomes(case: str) -> list[Outcome]:
        if case not in known:
            run = run_cases if case in CASES else run_more_cases
            results = [run(Ranks(), model_root), *run_on_ranks(run, 2, model_root, tmp_path_factory.mktemp("ranks"))]
            known.update({name: [result[name] for result in results] for name in results[0]})
        return known[case]

    return outcomes


def as_floats(array: np.ndarray) -> np.ndarray:
    """Weights as they travel: bfloat16 as its bits."""
    return (array.astype(np.int32) << 16).view(np.float32) if array.dtype == np.int16 else array


@pytest.mark.parametrize("case", ALL_CASES)
def test_two_ranks_give_the_loss_and_gradients_of_one(outcomes_of, case: str):
    expected, *both = outcomes_of(case)
    tolerance = SETTINGS[case].tolerance
    largest = max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for outcome in both:
        assert outcome.loss == pytest.approx(expected.loss, rel=tolerance)
        assert outcome.gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            assert np.abs(outcome.gradients[name] - gradient).max() <= tolerance * largest, name


@pytest.mark.parametrize("case", ALL_CASES)
def test_two_ranks_learn_what_one_learns(outcomes_of, case: str):
    expected, first, second = outcomes_of(case)
    tolerance = 10 * SETTINGS[case].tolerance
    for theirs, ours in zip(expected.step_metrics, first.step_metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"time/train_s", "tokens/padding"}:
            assert ours[name] == pytest.approx(theirs[name], rel=tolerance, abs=tolerance / 100), name
    assert first.weights.keys() == expected.weights.keys()
    assert not second.weights
    for name, array in expected.weights.items():
        # Adam's first steps are as long for a gradient of 1e-9 as for one of 1; rounding decides such signs.
        assert np.median(np.abs(as_floats(first.weights[name]) - as_floats(array))) <= tolerance, name


@pytest.mark.parametrize("case", ALL_CASES)
def test_two_ranks_resume_as_if_they_had_not_stopped(outcomes_of, case: str):
    for outcome in outcomes_of(case):
        assert outcome.resumed_loss == outcome.next_loss


@pytest.mark.parametrize("case", ALL_CASES)
def test_one_process_goes_on_from_what_two_have_written(outcomes_of, model_root, case: str):
    _, first, _ = outcomes_of(case)
    settings = SETTINGS[case]
    learner = resume(model_root, settings, Ranks(), written_by=2)
    batch = make_batch(learner._text, settings.samples, 0)
    assert learner.train_step(batch, LAST_PLAN).metrics["loss"] == pytest.approx(
        first.next_loss, rel=settings.tolerance
    )


@pytest.mark.parametrize("case", ALL_CASES)
def test_two_ranks_export_the_model_in_one_piece(outcomes_of, model_root, case: str):
    outcomes_of(case)
    settings = SETTINGS[case]
    one, two = (checkpoint_root(model_root, settings, Ranks(0, ranks)) / "export" for ranks in (1, 2))
    expected, exported = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert exported.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (exported[name] - tensor).abs().median() <= 10 * settings.tolerance, name


@pytest.mark.parametrize("case", ALL_CASES)
def test_both_ranks_evaluate_all_and_alike(outcomes_of, case: str):
    expected, *both = outcomes_of(case)
    assert expected.evaluation
    for outcome in both:
        assert outcome.evaluation == pytest.approx(expected.evaluation, rel=SETTINGS[case].tolerance)
