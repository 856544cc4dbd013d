"""Compiled routes on disk: one `.npz` per pair, named by the content it was compiled from.

Knows the file format and nothing of how routes are made. Files are written whole or not at all, read without pickle,
and checked against their own digest. The folder is bounded; several processes may share it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.byte_order import ByteOrder
from tokbridge_teacher.routing.router import UNMAPPED, Router

FORMAT_VERSION = 3
"""Raise it whenever the meaning of the arrays, or what φ gives, changes."""

DEFAULT_CACHE_BYTES = 1 << 30
_STALE_S = 3600.0
"""A temporary file of this age is one that a killed process left."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class CompiledRoutes:
    """What is worth keeping of a compiled pair."""

    phi: NDArray[np.int32]
    """[V], student id or `UNMAPPED`."""
    extended: NDArray[np.bool_]
    """[V], whether some student token strictly extends the token's bytes."""
    teacher_order: ByteOrder


def pair_key(teacher: ByteVocabulary, student: ByteVocabulary, router: Router) -> str:
    """SHA-256, as hex, over everything that φ depends on."""
    digest = hashlib.sha256(f"routes {FORMAT_VERSION} {router.mode}".encode())
    for vocabulary in (teacher, student):
        digest.update(vocabulary.fingerprint.encode())
    digest.update(np.ascontiguousarray(student.canonical_ids, np.int32).tobytes())
    if router.encoder is not None:
        digest.update(router.encoder.fingerprint.encode())
    return digest.hexdigest()


class RoutingCache:
    """A folder of compiled routes of bounded size; without a folder it holds nothing."""

    def __init__(self, folder: Path | None, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def load(self, key: str, teacher: ByteVocabulary, student: ByteVocabulary) -> CompiledRoutes | None:
        """The routes under `key`; None if they are not there or the file is damaged."""
        if self._folder is None:
            return None
        path = _path(self._folder, key)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                kept = [arrays[name] for name in _ARRAYS]
                digest = arrays["digest"]
            if digest.tobytes() != _digest(key, kept):
                raise ValueError("its digest is another")
            phi, extended, ids_by_rank = kept
            _check(phi, extended, teacher, student)
            routes = CompiledRoutes(phi, extended, ByteOrder(teacher, ids_by_rank))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            _log.warning("%s is damaged and made anew: %s", path, error)
            return None
        _touch(path)
        return routes

    def store(self, key: str, routes: CompiledRoutes) -> None:
        """Write the routes in one step and make room; a folder that cannot be written is logged and does no harm."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(self._folder, key, routes)
            self._make_room(self._folder, key)
        except OSError as error:
            _log.warning("routes are not kept in %s: %s", self._folder, error.strerror)

    def _write(self, folder: Path, key: str, routes: CompiledRoutes) -> None:
        kept = [routes.phi, routes.extended, routes.teacher_order.ids_by_rank]
        digest = np.frombuffer(_digest(key, kept), np.uint8)
        handle, temporary = tempfile.mkstemp(dir=folder, suffix=_TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **dict(zip(_ARRAYS, kept, strict=True)), digest=digest)
            os.replace(temporary, _path(folder, key))
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _make_room(self, folder: Path, newest: str) -> None:
        """Delete files not used for longest until the rest fits, and what killed processes left."""
        now = time.time()
        for path, stat in _files(folder, _TEMPORARY):
            if now - stat.st_mtime > _STALE_S:
                path.unlink(missing_ok=True)
        files = sorted(_files(folder, _SUFFIX), key=lambda file: file[1].st_mtime_ns)
        excess = sum(stat.st_size for _, stat in files) - self._max_bytes
        for path, stat in files:
            if excess <= 0:
                return
            if path != _path(folder, newest) or stat.st_size > self._max_bytes:
                path.unlink(missing_ok=True)
                excess -= stat.st_size


_ARRAYS = ("phi", "extended", "teacher_ids_by_rank")
_SUFFIX = ".npz"
_TEMPORARY = ".tmp"


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}{_SUFFIX}"


def _files(folder: Path, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
    """Files that are still there; another process may delete them at any time."""
    for path in folder.glob(f"*{suffix}"):
        try:
            yield path, path.stat()
        except FileNotFoundError:
            continue


def _touch(path: Path) -> None:
    """Mark a file as used now; in a folder that is only read it keeps its age."""
    try:
        os.utime(path)
    except OSError:
        _log.debug("%s cannot be marked as used", path)


def _digest(key: str, arrays: Sequence[NDArray[np.generic]]) -> bytes:
    """SHA-256 over the arrays and over what they are routes of: a file under another's name is none either."""
    digest = hashlib.sha256(key.encode())
    for array in arrays:
        digest.update(str(array.dtype).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _check(
    phi: NDArray[np.int32], extended: NDArray[np.bool_], teacher: ByteVocabulary, student: ByteVocabulary
) -> None:
    if phi.shape != (teacher.size,) or phi.dtype != np.int32:
        raise ValueError("not routes of this teacher")
    if phi.min(initial=0) < UNMAPPED or phi.max(initial=UNMAPPED) >= student.size:
        raise ValueError("routes outside the student's vocabulary")
    if extended.shape != phi.shape or extended.dtype != np.bool_:
        raise ValueError("not of this teacher's tokens")
