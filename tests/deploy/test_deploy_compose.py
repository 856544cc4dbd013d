"""The compose files: their schema, and their commands, ports and run against the code."""

import re

import pytest
import yaml

from support.deployment import CHART, COMPOSE, DEPLOY, RAYJOB, REPOSITORY, document, instructions, options_in
from support.deployment import serve_options as offered_options
from support.validators import program, run
from tokbridge_teacher.settings import ServeSettings
from tokbridge_trainer.config_loading import load_config

SCHEMA = ("--builtin-schema", "vendor.compose-spec")


def teacher_command() -> list[str]:
    return document(COMPOSE)["services"]["teacher-a"]["command"]


def image_entrypoint() -> str:
    (entrypoint,) = [line for line in instructions(DEPLOY / "teacher" / "Dockerfile") if line.startswith("ENTRYPOINT")]
    return entrypoint


@pytest.mark.parametrize(
    "text",
    [" ".join(teacher_command()), image_entrypoint(), (CHART / "templates" / "deployment.yaml").read_text()],
    ids=["compose", "image", "chart"],
)
def test_every_option_that_a_file_passes_to_the_teacher_exists(text):
    assert options_in(text)
    assert options_in(text) <= offered_options()


def test_docker_waits_longer_than_the_service_takes_to_stop():
    teacher = document(COMPOSE)["services"]["teacher-a"]
    (grace,) = [option for option in teacher["command"] if option.startswith("--shutdown-grace-s=")]
    assert int(teacher["stop_grace_period"].removesuffix("s")) >= float(grace.partition("=")[2]) + 10


def test_ports_are_the_services_own():
    ports = {"httpPort": ServeSettings.model_fields["port"].default}
    ports["grpcPort"] = ServeSettings.model_fields["grpc_port"].default
    assert document(CHART / "values.yaml")["service"] == ports
    (scrape,) = document(DEPLOY / "prometheus" / "prometheus.yaml")["scrape_configs"]
    replicas = [f"teacher-{letter}" for letter in "ab"]
    assert scrape["static_configs"] == [{"targets": [f"{name}:{ports['httpPort']}" for name in replicas]}]
    run_config = load_config(DEPLOY / "compose" / "run.yaml")
    assert run_config.teacher.urls == [f"{name}:{ports['grpcPort']}" for name in replicas]


def test_the_trainer_finds_every_file_of_its_run():
    run_config = load_config(DEPLOY / "compose" / "run.yaml")
    trainer = document(COMPOSE)["services"]["trainer"]
    mounts = [volume.removesuffix(":ro").rsplit(":", 1)[1] for volume in trainer["volumes"]]
    mounts += [f"/run/secrets/{secret}" for secret in trainer["secrets"]]
    paths = [run_config.student.model, *run_config.prompts.files, str(run_config.output_dir)]
    paths.append(str(run_config.teacher.api_key_file))
    for path in [*paths, *trainer["command"]]:
        assert any(path == mount or path.startswith(f"{mount}/") for mount in mounts), path


def test_versions_agree():
    version = re.search(r'^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)[1]
    ray = re.search(r"^ray==(.+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert document(CHART / "Chart.yaml")["appVersion"] == version
    assert document(RAYJOB, "RayJob")["spec"]["rayClusterSpec"]["rayVersion"] == ray
    for service in ("teacher-a", "trainer"):
        assert f":{version}-" in document(COMPOSE)["services"][service]["image"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_a_compose_file_follows_the_schema(name):
    result = run(program("check-jsonschema"), *SCHEMA, DEPLOY / "compose" / name)
    assert result.returncode == 0, result.stdout


@pytest.mark.nightly
def test_the_schema_sees_a_fault(tmp_path):
    compose = document(COMPOSE)
    compose["services"]["trainer"]["depend_on"] = ["teacher-a"]
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(compose))
    assert "depend_on" in run(program("check-jsonschema"), *SCHEMA, tmp_path / "compose.yaml").stdout
