"""Whose loss it is, from what Ray raises."""

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError

from tokbridge_trainer.lost_actors import ACTOR_LOST, lost_actor

ID = b"\1" * 16


def as_the_error_of_a_call_that_waited(cause):
    return RayTaskError("f", "traceback", cause).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (ActorUnavailableError("away", ID), ID.hex()),
        (as_the_error_of_a_call_that_waited(ActorUnavailableError("away", ID)), ID.hex()),
        (ActorDiedError(), "called"),
        (OutOfMemoryError("killed by the memory monitor"), "called"),
        (as_the_error_of_a_call_that_waited(OutOfMemoryError("killed by the memory monitor")), None),
    ],
)
def test_the_lost_actor_is_the_one_that_is_named_or_was_called(error, lost):
    assert isinstance(error, ACTOR_LOST)
    assert lost_actor(error, "called") == lost


def test_a_fault_in_an_actor_is_no_loss():
    assert not isinstance(as_the_error_of_a_call_that_waited(ValueError("wrong")), ACTOR_LOST)
