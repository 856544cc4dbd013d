"""Ranks under Ray Train, called like one learner: the same steps, typed errors, and a loss that is seen."""

from __future__ import annotations

import numpy as np
import pytest
import ray
from ray import cloudpickle
from ray.exceptions import RayActorError

from support import poison
from support.learner_cases import BETA, make_batch
from support.training import make_config
from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.actors import learner_class
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.schedule import StepPlan
from tokbridge_trainer.student_text import load_student_text

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def start_group(ray_cluster_address, model_folders, tmp_path):
    """Starts groups of two ranks, and ends them."""
    groups = []

    def start(**options):
        config = make_config(
            model_folders["student"],
            output_dir=str(tmp_path),
            ray={"learners": 2, "threads": 1, "learner_cpus": 0.5, "rollout_cpus": 0.5},
            **options,
        )
        text = load_student_text(make_config(model_folders["student"]))
        groups.append(learner_class(config).remote(config, text, None, 0))
        return groups[-1], config, text

    yield start
    for group in groups:
        ray.kill(group)


def test_a_group_steps_evaluates_and_gives_weights_like_one_learner(start_group):
    group, config, text = start_group()
    ray.get(group.load.remote())
    batch, plan = make_batch(text, 5, 0), StepPlan(0, "on_policy", 0, BETA, 1e-3)
    one = Learner(config, text, None, 0)
    before, expected = one.evaluate(batch, None), one.train_step(batch, plan)
    assert ray.get(group.evaluate.remote(batch, None)) == pytest.approx(before, rel=1e-5)
    result = ray.get(group.train_step.remote(batch, plan))
    assert result.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-5)
    assert result.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-5)
    assert result.samples == expected.samples
    weights = ray.get(group.weights.remote())
    assert weights.version == 1
    for name, array in one.weights().arrays.items():
        np.testing.assert_allclose(weights.arrays[name], array, atol=1e-4)
    # Ray's workers do not see the tests' modules.
    cloudpickle.register_pickle_by_value(poison)
    with pytest.raises(RayActorError):
        ray.get(group.evaluate.remote(poison.Poison(rank=1), None))


def test_what_is_wrong_with_the_student_or_a_batch_is_raised_as_what_it_is(start_group, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    group, _, _ = start_group(student={"model": str(empty)})
    with pytest.raises(InvalidConfigError, match="cannot load the student"):
        ray.get(group.load.remote())
