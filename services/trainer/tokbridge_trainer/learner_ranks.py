"""One rank of the learner, inside a worker of Ray Train: takes the commands of the group one after the other.

Ray Train runs a function in every worker and watches it; it has no way to call one. So ranks ask a board for the next
command. All run the same commands in the same order, which is what collectives need, and the first one answers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.util import get_current_placement_group

from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.learner import Learner
from tokbridge_trainer.ranks import Ranks
from tokbridge_trainer.student_text import StudentText
from tokbridge_trainer.threads import use_threads

STARTED = 0
"""Number under which the first rank answers that all have loaded, with their placement group; commands count from 1."""


@dataclass(frozen=True)
class Command:
    """A call of one of the learner's methods."""

    method: str
    arguments: list[Any] = field(default_factory=list)
    """Object references: the board does not hold what they refer to."""


class CommandBoard:
    """An async actor between the group and its ranks: commands by number, and answers."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._commands: defaultdict[int, asyncio.Future[Command | None]] = defaultdict(asyncio.Future)
        self._answers: defaultdict[int, asyncio.Future[Any]] = defaultdict(asyncio.Future)
        self._taken: defaultdict[int, int] = defaultdict(int)

    async def post(self, number: int, command: Command | None) -> None:
        """Put up a command; None ends the ranks."""
        self._commands[number].set_result(command)

    async def take(self, number: int) -> Command | None:
        """The command, once it is there; each rank takes each one once."""
        command = await asyncio.shield(self._commands[number])
        self._taken[number] += 1
        if self._taken[number] == self._ranks:
            # Its arguments can go.
            del self._commands[number], self._taken[number]
        return command

    async def answer(self, number: int, value: Any) -> None:
        """What the command gave: in a list a reference."""
        self._answers[number].set_result(value)

    async def answer_to(self, number: int) -> Any:
        """The answer, once it is there; handed out once."""
        value = await self._answers[number]
        del self._answers[number]
        return value


@dataclass(frozen=True)
class RankSettings:
    """What every rank is started with."""

    board: Any
    config: TrainConfig
    text: StudentText
    checkpoint: Path | None
    steps_done: int


def serve_rank(train_loop_config: dict[str, RankSettings]) -> None:
    """Load this rank's share of the learner, then run commands until there are no more.

    Ray Train calls it, with the settings under their name.

    What a command raises ends the rank, and with it, by Ray Train's watch, all others: they may be waiting in a
    collective for this one.
    """
    settings, context = train_loop_config["settings"], ray.train.get_context()
    ranks = Ranks(context.get_world_rank(), context.get_world_size())
    use_threads(settings.config.ray.threads)
    board, number = settings.board, STARTED
    learner = Learner(settings.config, settings.text, settings.checkpoint, settings.steps_done, ranks)
    result: object = get_current_placement_group()
    while True:
        if ranks.is_first:
            ray.get(board.answer.remote(number, [ray.put(result)]))
        number += 1
        command: Command | None = ray.get(board.take.remote(number))
        if command is None:
            return
        result = getattr(learner, command.method)(*ray.get(command.arguments))
