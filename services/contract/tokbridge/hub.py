"""Models of the Hugging Face hub: brought to this machine, with no file that could run.

Everything else reads folders. A hub id is `ORG/NAME`, or `ORG/NAME@REVISION` with a branch, a tag or a commit. What has
been fetched lies in the hub's own cache (`HF_HOME`) and is fetched once; without a network, or with `HF_HUB_OFFLINE=1`,
it is taken from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from tokbridge.errors import HubError, InvalidConfigError

_DESCRIPTION = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "chat_template.jinja",
)
_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")
_CODE = ("*.py",)
_LOG_IN = "log in (`hf auth login`, or the variable HF_TOKEN)"
# The error of the HTTP library that the installed client is built on is among the bases.
_FAULTS: tuple[type[Exception], ...] = (*HfHubHTTPError.__bases__, ValueError, RuntimeError)


def local_folder(source: str | Path, *, weights: bool = False, code: bool = False) -> Path:
    """The path of a model on this machine: `source` itself where it is a folder or a GGUF file, else what was fetched.

    Args:
        source: a folder, a GGUF file or a hub id.
        weights: fetch the weights, too, where they are safetensors.
        code: fetch Python files, too.

    Raises:
        InvalidConfigError: it is none of them.
        HubError: the hub does not have it, does not give it out or cannot be reached; or it has no such weights.
    """
    path = Path(source)
    if path.is_dir() or path.suffix == ".gguf":
        return path
    repo_id, _, revision = str(source).partition("@")
    _check_id(repo_id, source)
    patterns = [*_DESCRIPTION, *(_WEIGHTS if weights else ()), *(_CODE if code else ())]
    with hub_faults(f"{source} is no folder here, and cannot be fetched", repo_id):
        folder = Path(snapshot_download(repo_id, revision=revision or None, allow_patterns=patterns))
    if weights and not any(folder.glob("model*.safetensors")):
        raise HubError(
            f"{source} has no weights in model*.safetensors, and others are not fetched: a pickle runs the code it "
            f"holds, and of GGUF files there may be many. `hf download {repo_id} FILE --local-dir DIR` brings one; "
            "then give DIR"
        )
    return folder


def _check_id(repo_id: str, source: str | Path) -> None:
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise InvalidConfigError(
            f"{source} is neither a folder nor a hub id, which reads ORG/NAME or ORG/NAME@REVISION", field="model"
        ) from error


@contextmanager
def hub_faults(failed: str, repo_id: str) -> Iterator[None]:
    """Turn what the hub's client raises in the block into a `HubError`: what failed, why, and what to do."""
    try:
        yield
    except _FAULTS as error:
        raise HubError(f"{failed}: {_explanation(error, repo_id)}") from error


def _explanation(error: Exception, repo_id: str) -> str:
    match error:
        case GatedRepoError():
            return f"the hub gives {repo_id} out to those who accepted its terms on its page; do so, and {_LOG_IN}"
        case RevisionNotFoundError():
            return f"{repo_id} has no such revision; what follows the @ is a branch, a tag or a commit"
        case RepositoryNotFoundError():
            return f"the hub has no {repo_id}, or it is private; check the name, or {_LOG_IN}"
        case HfHubHTTPError(response=response) if response.status_code in (401, 403):
            return f"the hub refuses (HTTP {response.status_code}); {_LOG_IN} with a token that may do this"
        case HfHubHTTPError(response=response):
            return f"the hub answers HTTP {response.status_code}; try again later"
        case OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE is set"
        case LocalEntryNotFoundError():
            return (
                "the hub does not answer, or HF_HUB_OFFLINE is set, and its cache on this machine does not hold all of "
                "it; start once with a network, or bring the cache (HF_HOME) of a machine that has it"
            )
        case _:
            return f"{type(error).__name__}; is the hub within reach, and the disk not full?"
