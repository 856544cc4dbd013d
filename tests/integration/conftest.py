"""One Ray cluster a session, and tiny models on the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from support.teacher_process import TeacherProcess, running_teacher
from support.tiny_models import OTHER_TEACHER, TINY_STUDENT, TINY_TEACHER, save_tiny_model
from support.training import make_config
from tokbridge_trainer.actors import start_ray
from tokbridge_trainer.config import TrainConfig
from tokbridge_trainer.train import run_training


@pytest.fixture(scope="session")
def ray_cluster_address() -> Iterator[str]:
    """Address of a real local cluster that this process is connected to."""
    yield start_ray(num_cpus=2)
    ray.shutdown()


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a student and of two teachers with different tokenizers."""
    root = tmp_path_factory.mktemp("models")
    recipes = {"student": TINY_STUDENT, "teacher": TINY_TEACHER, "other_teacher": OTHER_TEACHER}
    return {name: save_tiny_model(recipe, root / name) for name, recipe in recipes.items()}


@pytest.fixture(scope="session")
def teacher(model_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeacherProcess]:
    """A teacher service in its own process."""
    with running_teacher(model_folders["teacher"], tmp_path_factory.mktemp("log") / "teacher.log") as process:
        yield process


@pytest.fixture(scope="session")
def other_teacher(model_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeacherProcess]:
    """A second one, with another tokenizer."""
    with running_teacher(model_folders["other_teacher"], tmp_path_factory.mktemp("log") / "teacher.log") as process:
        yield process


@pytest.fixture(scope="session")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten short prompts."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question number {i}?"}) + "\n" for i in range(10)))
    return path


@pytest.fixture(scope="session")
def undisturbed(
    ray_cluster_address: str,
    teacher: TeacherProcess,
    model_folders: dict[str, Path],
    prompt_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TrainConfig, str]:
    """A run of 20 steps, strictly on-policy, in which everything that is random takes part; and Ray's address."""
    config = make_config(
        model_folders["student"],
        output_dir=str(tmp_path_factory.mktemp("undisturbed") / "run"),
        prompts={"files": [str(prompt_file)]},
        teacher={"urls": [teacher.grpc], "timeout_s": 60},
        steps=20,
        samples_per_prompt=2,
        optimizer={"lr": 1e-3, "schedule": "cosine", "warmup": 3},
        lora={"rank": 2, "dropout": 0.1},
        loss={"whitespace": "random"},
        save={"every": 5},
        seed=3,
    )
    run_training(config)
    return config, ray_cluster_address
