"""The present list of teachers, and its change while samples are under way.

A new list counts once all its new teachers have shaken hands and know the student; until then, and if one of them
does not come up, the old one stays. Teachers that are no longer listed take no more samples and are closed when they
have answered what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

from tokbridge.description import TeacherDescription
from tokbridge.errors import TokbridgeError
from tokbridge_trainer.teachers.listing import TeacherList, exposure_warnings
from tokbridge_trainer.teachers.member import Member, StudentSide
from tokbridge_trainer.teachers.panel import Panel
from tokbridge_trainer.teachers.tally import Fields


class Switch:
    """Holds the present panel."""

    def __init__(self, student: StudentSide) -> None:
        self._student = student
        self._panel: Panel | None = None
        self._leaving: dict[asyncio.Task[None], Member] = {}
        self._events: list[str] = []
        """Of the step that is reported next."""
        self._untold: list[str] = []
        self._has_news = asyncio.Event()
        self._changes = 0
        self._refusals = 0

    @property
    def panel(self) -> Panel:
        """The teachers that samples go to now."""
        assert self._panel is not None, "start comes first"
        return self._panel

    async def start(self, teachers: TeacherList) -> dict[str, TeacherDescription]:
        """Connect the first list.

        Raises:
            TokbridgeError: a teacher does not answer, or is not the one that is meant.
        """
        self._panel = Panel(teachers.config, await self._connected(teachers, {}), self._tell)
        return {name: member.teacher for name, member in self._panel.members.items()}

    async def change(self, teachers: TeacherList) -> None:
        """Replace the list, or keep the old one and say why."""
        old = self.panel
        kept = {
            name: member
            for name, member in old.members.items()
            if name in teachers.config.members
            and member.serves(teachers.config.members[name], teachers.credentials[name])
        }
        try:
            members = await self._connected(teachers, kept)
        except TokbridgeError as error:
            self.refused(error)
            return
        lines = _changes(old.members, members)
        if not lines and teachers.config == old.config:
            self._tell("the list of teachers was written again and says what it said before")
            return
        self._panel = Panel(teachers.config, members, self._tell)
        old.supersede()
        self._changes += 1
        self._tell(*(lines or ["the teachers are the same, rules or weights changed"]))
        for name in members.keys() - kept.keys():
            self._tell(*exposure_warnings(teachers, name))
        for name, member in old.members.items():
            if name not in kept:
                self._leave(member, teachers.config.drain_s)

    def refused(self, error: TokbridgeError) -> None:
        """A new list cannot be used; the old one stays."""
        self._refusals += 1
        self._tell(f"the list of teachers stays as it was: {error.message}")

    async def news(self) -> list[str]:
        """Lines for people about the list and its teachers, each once, as soon as there are any."""
        await self._has_news.wait()
        self._has_news.clear()
        untold, self._untold = self._untold, []
        return untold

    def take_changes(self) -> Fields:
        """What has happened to the list since the last call, as metrics."""
        events, self._events = self._events, []
        metrics: Fields = {
            "teachers/listed": float(len(self.panel.members)),
            "teachers/leaving": float(len(self._leaving)),
            "teachers/changes": float(self._changes),
            "teachers/refused_lists": float(self._refusals),
        }
        self._changes = self._refusals = 0
        return metrics | ({"teachers/events": "; ".join(events)} if events else {})

    async def close(self) -> None:
        """Close all connections, those of leaving teachers too."""
        members = [*self._leaving.values(), *(self._panel.members.values() if self._panel else ())]
        tasks = [*self._leaving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(member.close() for member in members))

    async def _connected(self, teachers: TeacherList, kept: Mapping[str, Member]) -> dict[str, Member]:
        """All members of a list, in its order; if one does not come up, those that are new are closed again."""
        members: dict[str, Member] = {}
        async with AsyncExitStack() as opened:
            for name, config in teachers.config.members.items():
                members[name] = kept.get(name) or Member(config, teachers.credentials[name], self._student)
                if name not in kept:
                    opened.push_async_callback(members[name].close)
            await asyncio.gather(*(member.connect() for name, member in members.items() if name not in kept))
            opened.pop_all()
        return members

    def _tell(self, *lines: str) -> None:
        self._events += lines
        self._untold += lines
        self._has_news.set()

    def _leave(self, member: Member, grace_s: float) -> None:
        member.retire()
        task = asyncio.create_task(member.drain(grace_s))
        self._leaving[task] = member
        task.add_done_callback(self._leaving.pop)


def _changes(old: Mapping[str, Member], new: Mapping[str, Member]) -> list[str]:
    """A line for each teacher that came, went or is another one now."""
    lines: list[str] = []
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before is None and after is not None:
            lines.append(f"teacher {name} joins: {after.label}")
        elif after is None and before is not None:
            lines.append(f"teacher {name} leaves: {before.label}")
        elif before is not after and before is not None and after is not None:
            lines.append(f"teacher {name} changes from {before.label} to {after.label}")
    return lines
