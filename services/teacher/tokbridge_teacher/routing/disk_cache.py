"""Compiled routes on disk: one `.npz` per pair, named by the content it was compiled from.

Knows the file format and nothing of how routes are made. Files are written whole or not at all, and read without
pickle.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokbridge.vocabulary import ByteVocabulary
from tokbridge_teacher.routing.byte_order import ByteOrder
from tokbridge_teacher.routing.router import UNMAPPED, Router

FORMAT_VERSION = 1
"""Raise it whenever the meaning of the arrays, or what φ gives, changes."""


@dataclass(frozen=True, eq=False)
class CompiledRoutes:
    """What is worth keeping of a compiled pair."""

    phi: NDArray[np.int32]
    """[V], student id or `UNMAPPED`."""
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
    """A folder of compiled routes; without a folder it holds nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, key: str, teacher: ByteVocabulary, student: ByteVocabulary) -> CompiledRoutes | None:
        """The routes under `key`; None if they are not there or the file is damaged."""
        if self._folder is None:
            return None
        try:
            with np.load(self._path(self._folder, key), allow_pickle=False) as arrays:
                phi, ids_by_rank = arrays["phi"], arrays["teacher_ids_by_rank"]
            _check_phi(phi, teacher, student)
            return CompiledRoutes(phi, ByteOrder(teacher, ids_by_rank))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def store(self, key: str, routes: CompiledRoutes) -> None:
        """Write the routes, replacing what was there in one step."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._folder, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, phi=routes.phi, teacher_ids_by_rank=routes.teacher_order.ids_by_rank)
            os.replace(temporary, self._path(self._folder, key))
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / f"{key}.npz"


def _check_phi(phi: NDArray[np.int32], teacher: ByteVocabulary, student: ByteVocabulary) -> None:
    if phi.shape != (teacher.size,) or phi.dtype != np.int32:
        raise ValueError("not routes of this teacher")
    if phi.min(initial=0) < UNMAPPED or phi.max(initial=UNMAPPED) >= student.size:
        raise ValueError("routes outside the student's vocabulary")
