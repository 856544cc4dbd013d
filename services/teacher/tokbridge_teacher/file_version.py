"""Whether a file is still the one that was read. Knows no content."""

from __future__ import annotations

from pathlib import Path

FileVersion = tuple[int, ...]


def file_version(path: Path) -> FileVersion:
    """What changes with the file's content or permissions, also where a link to it is turned (Kubernetes does so), or
    where its time of modification is kept.

    Raises:
        OSError: there is none that can be looked at.
    """
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_ctime_ns, stat.st_size
