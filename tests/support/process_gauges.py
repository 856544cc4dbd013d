"""What a process and its children hold, read from /proc, and how it grows."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Reading:
    """One look at a process."""

    at_s: float
    calls: float
    """Done until then, by whatever count the caller keeps."""
    resident_bytes: int
    children_bytes: int
    """Resident memory of its children, together."""
    threads: int
    files: int
    """Open file descriptors."""


def read_process(pid: int, *, at_s: float, calls: float) -> Reading:
    """Look now.

    Raises:
        FileNotFoundError: the process is gone.
    """
    proc = Path(f"/proc/{pid}")
    return Reading(
        at_s=at_s,
        calls=calls,
        resident_bytes=resident_bytes(pid),
        children_bytes=sum(map(_resident_or_gone, children_of(pid))),
        threads=len(list((proc / "task").iterdir())),
        files=len(list((proc / "fd").iterdir())),
    )


def resident_bytes(pid: int) -> int:
    """Resident memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children_of(pid: int) -> list[int]:
    """Processes that it has started, by any of its threads."""
    lists = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lists.append((task / "children").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue  # that thread has just ended
    return [int(child) for text in lists for child in text.split()]


def _resident_or_gone(pid: int) -> int:
    try:
        return resident_bytes(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0


@dataclass
class Growth:
    """Readings of one process over its life, and the line through their second half."""

    readings: list[Reading] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Between the first and the last reading."""
        return self.readings[-1].at_s - self.readings[0].at_s if self.readings else 0.0

    def settled(self) -> list[Reading]:
        """The second half; caches and the allocator's arenas fill in the first."""
        half_s = (self.readings[0].at_s + self.readings[-1].at_s) / 2
        return [reading for reading in self.readings if reading.at_s >= half_s]

    def slope(self, name: str, over: str = "at_s") -> float:
        """Least squares over the second half: units of the field `name` a unit of the field `over`."""
        settled = self.settled()
        across = np.array([getattr(reading, over) for reading in settled], float)
        if np.ptp(across) == 0:
            return 0.0
        return float(np.polyfit(across - across[0], [getattr(reading, name) for reading in settled], 1)[0])

    def summary(self) -> dict[str, object]:
        """Figures for a report."""
        settled, last = self.settled(), self.readings[-1]
        mib = [reading.resident_bytes / 2**20 for reading in self.readings]
        return {
            "seconds": round(self.seconds),
            "calls": round(last.calls),
            "resident_mib": {
                "first": round(mib[0], 1),
                "at_half": round(settled[0].resident_bytes / 2**20, 1),
                "last": round(mib[-1], 1),
                "most": round(max(mib), 1),
            },
            "second_half": {
                "readings": len(settled),
                "mib_per_hour": round(self.slope("resident_bytes") * 3600 / 2**20, 2),
                "bytes_per_call": round(self.slope("resident_bytes", "calls"), 1),
                "children_mib_per_hour": round(self.slope("children_bytes") * 3600 / 2**20, 2),
                "threads_per_hour": round(self.slope("threads") * 3600, 2),
                "files_per_hour": round(self.slope("files") * 3600, 2),
            },
            "children_mib": [round(reading.children_bytes / 2**20, 1) for reading in (self.readings[0], last)],
            "threads": [self.readings[0].threads, last.threads, max(r.threads for r in self.readings)],
            "files": [self.readings[0].files, last.files, max(r.files for r in self.readings)],
        }
