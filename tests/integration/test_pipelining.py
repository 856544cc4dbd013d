"""Which stages work at the same time, by the order of what they did; how long it took says a benchmark."""

import pytest

from support.slow_stages import SAMPLES_PER_STEP, Stages, run_stages

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

STEPS = 6
SLOW_TEACHER = Stages(rollout_s=0.1, teacher_s=0.4, learner_s=0.1)
SLOW_ROLLOUT = Stages(rollout_s=0.4, teacher_s=0.1, learner_s=0.1)


def spans_of(spans, stage):
    return {step: [span for span in spans if span.stage == stage and span.step == step] for step in range(STEPS)}


@pytest.fixture(scope="module", params=[SLOW_TEACHER, SLOW_ROLLOUT], ids=["slow teacher", "slow rollout"])
def runs(request, ray_cluster_address):
    """What every stage did, by lag."""
    return {lag: run_stages(request.param, lag, STEPS) for lag in (0, 1, 2)}


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_rollouts_run_ahead_as_far_as_the_lag_and_no_farther(runs, lag):
    rollouts, learner = spans_of(runs[lag], "rollout"), spans_of(runs[lag], "learner")
    for step in range(STEPS):
        (written,), (trained,) = rollouts[step], learner[step]
        assert written.end < trained.start
        if step > lag:
            (freed_by,) = learner[step - lag - 1]
            assert written.start > freed_by.end
    overlapping = [step for step in range(1, STEPS) if rollouts[step][0].start < learner[step - 1][0].end]
    assert overlapping == ([] if lag == 0 else list(range(1, STEPS)))


def test_the_teacher_reads_while_others_are_still_being_written(runs):
    rollouts, teacher = spans_of(runs[0], "rollout"), spans_of(runs[0], "teacher")
    for step in range(STEPS):
        assert len(teacher[step]) == SAMPLES_PER_STEP
        assert teacher[step][0].start < rollouts[step][0].end
