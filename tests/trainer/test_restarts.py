"""Restarts are counted by actor and bounded."""

import pickle

import pytest

from tokbridge.errors import ActorLostError
from tokbridge_trainer.restarts import FEED, LEARNER, ROLLOUT, Restarts


def test_each_actor_has_its_own_bound_and_kinds_are_summed():
    restarts = Restarts(2)
    for index in (0, 1, 1, 0):
        restarts.count(ROLLOUT, index)
    restarts.count(FEED)
    assert restarts.metrics() == {"restarts/learner": 0, "restarts/feed": 1, "restarts/rollout": 4}
    with pytest.raises(ActorLostError, match="rollout 1") as caught:
        restarts.count(ROLLOUT, 1)
    assert caught.value.details == {"actor": "rollout 1", "restarts": 2}
    assert pickle.loads(pickle.dumps(caught.value)).details == caught.value.details
    assert restarts.metrics()["restarts/rollout"] == 4


def test_none_may_be_allowed():
    with pytest.raises(ActorLostError, match="max_restarts"):
        Restarts(0).count(LEARNER)
