"""How a checkpoint comes into being: whole or not at all, in a thread of its own, and older ones go.

It is filled under another name, brought to the disk (fsync) and renamed, so a kill or a power cut at any moment leaves
the old checkpoints or the new one, never a half one. One that goes is renamed first for the same reason. The module
knows nothing of models: who calls says what is written.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tokbridge.errors import CheckpointError
from tokbridge_trainer.checkpoint import STATE_FILE, RunState, checkpoint_path, list_checkpoints, steps_done_at
from tokbridge_trainer.config_sections import SaveConfig


@contextmanager
def writing_checkpoint(root: Path, state: RunState) -> Iterator[Path]:
    """A temporary folder to fill; on leaving it becomes the checkpoint. Nothing is left of it when the block raises."""
    root.mkdir(parents=True, exist_ok=True)
    final = checkpoint_path(root, state.steps_done)
    temporary = partial_path(root, state.steps_done)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        (temporary / STATE_FILE).write_text(state.to_json(), encoding="utf-8")
        sync_tree(temporary)
        if final.exists():
            _remove(final)
        temporary.rename(final)
        _sync(root)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def partial_path(root: Path, steps_done: int) -> Path:
    """Where a checkpoint is put together."""
    return root / f".{checkpoint_path(root, steps_done).name}.partial"


def prune_checkpoints(root: Path, save: SaveConfig, now: float) -> None:
    """Remove checkpoints that are too many or too old, and what kills left of others; the newest always stays.

    Args:
        now: seconds since the epoch.
    """
    for leftover in root.glob(".checkpoint-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for rank, path in enumerate(reversed(list_checkpoints(root))):
        age_h = (now - (path / STATE_FILE).stat().st_mtime) / 3600
        too_old = save.max_age_hours is not None and age_h > save.max_age_hours
        if rank >= save.keep or (too_old and rank > 0):
            _remove(path)


def set_aside_later(root: Path, steps_done: int) -> list[Path]:
    """Rename the checkpoints past the step that a run starts from: their steps are about to be made anew.

    Returns:
        Where they lie now; no run takes them for its own.
    """
    moved: list[Path] = []
    for path in list_checkpoints(root):
        if steps_done_at(path) > steps_done:
            aside = path.with_name(f"{path.name}.abandoned")
            shutil.rmtree(aside, ignore_errors=True)
            moved.append(path.rename(aside))
    return moved


class CheckpointWriter:
    """Writes in a thread, one checkpoint at a time. What goes wrong there is raised by the next call of any method."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write; an earlier checkpoint is waited for."""
        self.wait()
        self._running = self._thread.submit(write)

    def check(self) -> None:
        """Raise what went wrong, if it did; does not wait.

        Raises:
            CheckpointError: the checkpoint could not be written.
        """
        if self._running is not None and self._running.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            CheckpointError: the checkpoint could not be written.
        """
        running, self._running = self._running, None
        error = running.exception() if running else None
        if isinstance(error, CheckpointError):
            raise error
        if error is not None:
            raise CheckpointError(f"a checkpoint could not be written: {type(error).__name__}: {error}") from error


def write_checkpoint(root: Path, state: RunState, save: SaveConfig, fill: Callable[[Path], None]) -> None:
    """Make one checkpoint of what `fill` writes into a folder, then prune."""
    with writing_checkpoint(root, state) as folder:
        fill(folder)
    prune_checkpoints(root, save, time.time())


def sync_tree(folder: Path) -> None:
    """Bring all files below a folder, and the folders themselves, to the disk."""
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent) / name)
        _sync(Path(parent))


def _remove(path: Path) -> None:
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
