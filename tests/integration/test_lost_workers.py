"""A rollout worker dies while its samples are being scored: each sample reaches its batch, and once."""

from collections import Counter

import pytest

from support.slow_stages import SAMPLES_PER_STEP, DiesInTheMiddle, Stages, run_stages
from tokbridge.errors import ActorLostError

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(300)]

STEPS = 4
QUICK = Stages(rollout_s=0.1, teacher_s=0.1, learner_s=0.1)


@pytest.mark.parametrize("lag", [0, 1])
def test_only_what_the_feed_has_not_got_is_written_again(ray_cluster_address, lag):
    spans = run_stages(QUICK, lag, STEPS, DiesInTheMiddle, max_restarts=1)
    assert [span.step for span in spans if span.stage == "learner"] == list(range(STEPS))
    scored = Counter(span.step for span in spans if span.stage == "teacher")
    assert scored == dict.fromkeys(range(STEPS), SAMPLES_PER_STEP)


def test_without_a_restart_it_is_a_typed_error(ray_cluster_address):
    with pytest.raises(ActorLostError, match="rollout 0"):
        run_stages(QUICK, 0, STEPS, DiesInTheMiddle)
