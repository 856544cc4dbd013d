"""Jobs that wait for the model, and which of them run together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokbridge_teacher.backends.base import ScoreJob
from tokbridge_teacher.callers import ANONYMOUS, Caller


@dataclass(frozen=True, eq=False)
class Ticket:
    """A job in the scheduler; compared by identity."""

    job: ScoreJob
    on_start: Callable[[], None]
    caller: Caller = ANONYMOUS
    prompt_key: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_key", self.job.prompt_ids.tobytes())

    @property
    def num_tokens(self) -> int:
        """Its size for fairness and batching."""
        return self.job.num_tokens


def select_batch(queue: Sequence[Ticket], batch_tokens: int) -> list[Ticket]:
    """The next tickets to run: the first, those that share its prompt, then others in order, within the budget."""
    if not queue:
        return []
    first = queue[0]
    rest = sorted(queue[1:], key=lambda ticket: ticket.prompt_key != first.prompt_key)
    batch, room = [first], batch_tokens - first.num_tokens
    for ticket in rest:
        if ticket.num_tokens <= room:
            batch.append(ticket)
            room -= ticket.num_tokens
    return batch
