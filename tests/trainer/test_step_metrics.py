"""The numbers of a step, against counts made by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from support.random_rows import random_rows
from support.training import make_sample, score
from tokbridge.targets import RowCase
from tokbridge_trainer.samples import SampleKey, ScoredSample, StepBatch
from tokbridge_trainer.step_metrics import LearnedRows, loss_metrics, sample_metrics, target_metrics, teacher_shares


def learned(cases, divergence, target, student, **left_out):
    as_float = [np.array(values, np.float32) for values in (divergence, target, student)]
    return LearnedRows(np.array(cases, np.uint8), *as_float, left_out)


def test_loss_is_the_sum_over_z_and_splits_by_case():
    rows = LearnedRows.concatenate(
        [
            learned([RowCase.ALIGNED, RowCase.STOP], [1.0, 4.0], [-1.0, -np.inf], [-3.0, -1.0], whitespace=2),
            learned([RowCase.ALIGNED], [2.0], [-2.0], [-1.0], whitespace=1, excluded=1),
        ]
    )
    metrics = loss_metrics(rows, normalizer=10)
    assert metrics["loss"] == pytest.approx(0.7)
    assert metrics["loss/aligned"] == pytest.approx(0.3)
    assert metrics["loss/stop"] == pytest.approx(0.4)
    assert metrics["divergence/aligned"] == pytest.approx(1.5)
    assert "loss/spanning" not in metrics
    assert metrics["emitted/log_ratio"] == pytest.approx((2.0 - 1.0) / 2)
    assert metrics["emitted/zero_mass_rows"] == 1
    assert metrics["left_out/whitespace"] == 3
    assert metrics["left_out/excluded"] == 1
    assert metrics["rows/learned"] == 3


def test_each_teachers_part_of_the_loss_follows_its_share_in_each_row():
    half = np.array([0.5, 0.0, 1.0], np.float32)
    scored = [
        ScoredSample(
            make_sample([1], [2, 3, 4]), score(make_sample([1], [2]), None).result, {"a": half, "b": 1 - half}
        ),
        ScoredSample(make_sample([1], [2]), score(make_sample([1], [2]), None).result, {"b": np.ones(1, np.float32)}),
    ]
    shares = teacher_shares(scored, np.array([0, 0, 1]), np.array([0, 2, 0]))
    assert {name: share.tolist() for name, share in shares.items()} == {"a": [0.5, 1.0, 0.0], "b": [0.5, 0.0, 1.0]}
    cases, nothing = [RowCase.ALIGNED] * 3, [-1.0] * 3
    first = replace(learned(cases, [1.0, 2.0, 4.0], nothing, nothing), shares=shares)
    second = learned(cases[:1], [8.0], nothing[:1], nothing[:1])
    third = replace(second, shares={"c": np.ones(1, np.float32)})
    metrics = loss_metrics(LearnedRows.concatenate([first, second, third]), normalizer=10)
    assert {name: metrics[f"teachers/{name}/loss"] for name in "abc"} == pytest.approx({"a": 0.25, "b": 0.45, "c": 0.8})


def test_no_rows_give_no_means_and_a_loss_of_zero():
    metrics = loss_metrics(LearnedRows.concatenate([]), normalizer=0)
    assert metrics["loss"] == 0.0
    assert not any(np.isnan(value) for value in metrics.values())
    assert target_metrics([]) == {f"rows/{case.name.lower()}": 0.0 for case in RowCase}


def test_rows_are_counted_by_case_and_residuals_averaged_over_content_rows():
    targets = [random_rows(np.random.default_rng(seed), 50) for seed in range(3)]
    metrics = target_metrics(targets)
    cases = Counter(int(case) for rows in targets for case in rows.cases)
    assert {case: metrics[f"rows/{case.name.lower()}"] for case in RowCase} == {case: cases[case] for case in RowCase}
    content = [
        float(rows.residual_control[i])
        for rows in targets
        for i, case in enumerate(rows.cases)
        if case in (RowCase.ALIGNED, RowCase.INTERIOR, RowCase.SPANNING)
    ]
    assert metrics["residual/control"] == pytest.approx(np.mean(content), rel=1e-5)


def test_samples_are_counted_by_how_they_ended_and_how_stale_they_are():
    rng = np.random.default_rng(0)
    scored = []
    for index, stop_id in enumerate([None, 7, 7]):
        sample = make_sample([1, 2], [3, 4], stop_id, SampleKey(0, index, 0))
        facts = {"content_log_prob": -4 * np.log(2), "scored_bytes": 2, "seam": "cut", "retries": {"overloaded": 2}}
        scored.append(score(sample, random_rows(rng, sample.num_response_tokens), **facts))
    metrics = sample_metrics(StepBatch(scored, Counter(overloaded=2)), version=3)
    assert metrics["samples/cut"] == 1
    assert metrics["samples/stopped"] == 2
    assert metrics["samples/dropped"] == metrics["samples/dropped/overloaded"] == 2
    assert metrics["tokens/response"] == 8
    assert metrics["tokens/prompt"] == 6
    assert metrics["policy_lag/mean"] == metrics["policy_lag/max"] == 3
    assert metrics["teacher/seam/cut"] == 3
    assert metrics["teacher/retries/overloaded"] == 6
    assert metrics["teacher/bits_per_byte"] == pytest.approx(2.0)


def test_unresolved_mass_is_a_mean_over_content_rows_of_all_responses():
    rng = np.random.default_rng(0)
    facts = [
        {"cases": {"aligned": 3, "stop": 1}, "unresolved_mass": 1.5, "lookahead_tail": 0.25},
        {"cases": {"interior": 1, "excluded": 7}, "unresolved_mass": 0.5},
    ]
    scored = [score(make_sample([1], [3]), random_rows(rng, 1), **each) for each in facts]
    metrics = sample_metrics(StepBatch(scored), version=0)
    assert metrics["teacher/unresolved_mass"] == pytest.approx(0.5)
    assert metrics["teacher/lookahead_tail"] == pytest.approx(0.0625)
    assert "teacher/unresolved_mass" not in sample_metrics(StepBatch([]), version=0)
