"""Weights from GPU to GPU as a run goes about them: all meet, every version goes to all, and none can leave.

Real Ray actors and the real loop, with a meeting point in the place of NCCL.
"""

import pytest
import ray

from support.broadcast_stages import Meeting, MeetingLearner, MeetingWorker, MortalWorker
from support.slow_stages import Stages, actor_class, loop_over, stage_factories
from tokbridge_trainer.actors import Actors
from tokbridge_trainer.supply import LearnerLostError

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(120)]

STAGES = Stages(rollout_s=0.05, teacher_s=0.05, learner_s=0.05)
STEPS = 3


@pytest.fixture
def meeting(ray_cluster_address):
    actor = actor_class(Meeting).remote(3)
    yield actor
    ray.kill(actor)


def run(meeting, worker):
    factories = stage_factories(STAGES, meeting, learner=MeetingLearner, worker=worker)
    actors = Actors(factories, num_workers=2, ranks_per_broadcast_engine=2)
    try:
        actors.wait_until_ready()
        for _ in loop_over(actors, 1, STEPS).steps():
            pass
    finally:
        actors.end()


def test_learner_and_engines_meet_and_every_version_is_sent_to_all(meeting):
    run(meeting, MeetingWorker)
    seen = ray.get(meeting.seen.remote())
    everyone = {0, 1, 3}
    assert seen["join 5"] == everyone
    assert all(seen[version] == everyone for version in range(STEPS))


def test_the_loss_of_a_worker_is_the_loss_of_the_group(meeting):
    with pytest.raises(LearnerLostError):
        run(meeting, MortalWorker)
