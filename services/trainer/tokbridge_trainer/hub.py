"""Upload of a finished model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi

from tokbridge.hub import hub_faults
from tokbridge_trainer.config_sections import PushToHubConfig


def open_repository(config: PushToHubConfig) -> None:
    """Make the repository if need be.

    Raises:
        HubError: it cannot be made, and is not there.
    """
    repo_id = config.repo_id
    with hub_faults(f"push_to_hub: {repo_id} cannot be made", repo_id):
        HfApi().create_repo(repo_id, private=config.private, exist_ok=True)


def push_folder(folder: Path, config: PushToHubConfig) -> str:
    """Upload a model folder to its repository; returns the address of the commit.

    Raises:
        HubError: the hub does not take it; says how to upload it by hand.
    """
    repo_id = config.repo_id
    by_hand = f"run this again to try again, or by hand: hf upload {repo_id} {folder}"
    with hub_faults(f"the model is in {folder}, but was not pushed to {repo_id} ({by_hand})", repo_id):
        commit = HfApi().upload_folder(
            folder_path=str(folder), repo_id=repo_id, commit_message="Trained with tokbridge"
        )
    return commit.commit_url
