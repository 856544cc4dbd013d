"""How Ray says that an actor's process is gone, and which actor it was."""

from __future__ import annotations

from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

ACTOR_LOST = (RayActorError, OutOfMemoryError)
"""What a call to a lost actor raises; the second where Ray's memory monitor has ended it."""


def lost_actor(error: RayError, called: str) -> str | None:
    """Id of the lost actor, as Ray writes ids.

    Args:
        error: one of `ACTOR_LOST`, as `ray.get` raises it.
        called: the actor that was called. It need not be the lost one: the call may have waited for the outcome of
            another, and has its error then.

    Returns:
        None where the error is that of another call and does not name the actor.
    """
    if isinstance(error, RayActorError) and error.actor_id is not None:
        return str(error.actor_id)
    return None if isinstance(error, RayTaskError) else called
