"""Follows a `teachers_file` while a run goes on.

It is looked at every second, not only where a step ends: a step may be waiting for the very teacher that the new list
replaces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from tokbridge.errors import InvalidConfigError
from tokbridge_trainer.teachers.listing import TeacherList, parse_list, read_list
from tokbridge_trainer.teachers.switch import Switch

LOOK_EVERY_S = 1.0

Sleep = Callable[[float], Awaitable[None]]
Reading = bytes | str
"""Content of the file, or why it cannot be read."""


class FileWatch:
    """Says when a file has new content; a pure state machine.

    Content counts when two looks in a row have found it: a writer may be half way through.
    """

    def __init__(self, present: Reading) -> None:
        self._present = present
        self._seen = present

    def look(self, found: Reading) -> bool:
        """Whether what is found is new, and whole."""
        is_settled = found == self._seen
        self._seen = found
        if not is_settled or found == self._present:
            return False
        self._present = found
        return True


def look_at(path: Path) -> Reading:
    """The file as it is now."""
    try:
        return read_list(path)
    except InvalidConfigError as error:
        return error.message


def usable(found: Reading, path: Path, carried: frozenset[str]) -> TeacherList:
    """The list that was found; raises `InvalidConfigError` where there is none, or a wrong one."""
    if isinstance(found, str):
        raise InvalidConfigError(found, field="teachers_file")
    return parse_list(found, path, carried)


async def follow(
    path: Path,
    present: Reading,
    carried: frozenset[str],
    switch: Switch,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Apply each new content of the file to the switch, until cancelled. What cannot be used changes nothing.

    Args:
        present: what was found when the switch started.
        carried: columns that travel with the prompts.
    """
    watch = FileWatch(present)
    change: asyncio.Task[None] | None = None
    try:
        while True:
            await sleep(LOOK_EVERY_S)
            if change is not None and change.done():
                change.result()  # a fault of ours must not pass unseen
                change = None
            found = await asyncio.to_thread(look_at, path)
            if not watch.look(found):
                continue
            if change is not None:  # a list whose teachers do not come up must not hold up the one that mends it
                change.cancel()
                await asyncio.wait([change])
            change = asyncio.create_task(_apply(found, path, carried, switch))
    finally:
        if change is not None:
            change.cancel()
            await asyncio.wait([change])


async def _apply(found: Reading, path: Path, carried: frozenset[str], switch: Switch) -> None:
    try:
        teachers = usable(found, path, carried)
    except InvalidConfigError as error:
        switch.refused(error)
        return
    await switch.change(teachers)
