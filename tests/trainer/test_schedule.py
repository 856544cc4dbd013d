"""Phases and learning rates of steps."""

import math

import pytest

from support.training import make_config
from tokbridge_trainer.config_sections import OptimizerConfig
from tokbridge_trainer.schedule import learning_rate, plan_step


def test_warmup_rises_to_the_peak_and_the_first_step_learns():
    optimizer = OptimizerConfig(lr=1.0, warmup=4)
    assert [learning_rate(optimizer, 1.0, i, 100) for i in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_starts_at_the_peak_falls_and_ends_near_its_minimum(schedule):
    optimizer = OptimizerConfig(lr=1.0, warmup=10, schedule=schedule, min_lr_ratio=0.1)
    rates = [learning_rate(optimizer, 2.0, i, 1010) for i in range(10, 1010)]
    assert rates[0] == 2.0
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(0.2, abs=3e-3)
    assert rates[500] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))


def test_cosine_is_a_cosine():
    optimizer = OptimizerConfig(lr=1.0, schedule="cosine")
    assert learning_rate(optimizer, 1.0, 25, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_the_warm_start_comes_first_with_its_own_beta_and_rate():
    config = make_config(
        warm_start={"steps": 2, "responses": ["w.jsonl"], "beta": 0.0, "lr": 5e-3}, loss={"beta": 1.0}, steps=2
    )
    plans = [plan_step(config, step, 2) for step in range(4)]
    assert [(p.phase, p.index, p.beta, p.lr) for p in plans] == [
        ("warm_start", 0, 0.0, 5e-3),
        ("warm_start", 1, 0.0, 5e-3),
        ("on_policy", 0, 1.0, 1e-3),
        ("on_policy", 1, 1.0, 1e-3),
    ]
