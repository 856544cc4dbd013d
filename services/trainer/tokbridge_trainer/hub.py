"""Upload of a finished model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi

from tokbridge_trainer.config_sections import PushToHubConfig


def push_folder(folder: Path, config: PushToHubConfig) -> str:
    """Upload a model folder, making the repository if need be; returns its address."""
    api = HfApi()
    address = api.create_repo(config.repo_id, private=config.private, exist_ok=True)
    api.upload_folder(folder_path=str(folder), repo_id=config.repo_id, commit_message="Trained with tokbridge")
    return str(address)
