"""The Dockerfiles: what they copy, who they run as, how they stop, and what their health check says."""

import importlib.util
import json
import re
import subprocess
import tomllib
from fnmatch import fnmatch

import pytest

from support.deployment import COMPOSE, DEPLOY, DOCKERFILES, RAYJOB, REPOSITORY, document, instructions
from support.served import served_over_http
from support.validators import program, run

each_image = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
EXTRAS = {"teacher": ["teacher"], "trainer": ["trainer", "eval"]}


def copied_sources(dockerfile):
    copies = [line for line in instructions(dockerfile) if line.startswith("COPY ") and "--from" not in line]
    return [source for copy in copies for source in copy.split()[1:-1]]


@each_image
def test_what_an_image_copies_exists_and_is_in_the_build_context(dockerfile):
    rules = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[0] == "*"
    assert copied_sources(dockerfile)
    for source in copied_sources(dockerfile):
        assert (REPOSITORY / source).exists()
        assert any(fnmatch(source, rule) for rule in allowed), f"{source} is not in the build context"


@each_image
def test_an_image_runs_unprivileged_stops_on_sigterm_and_is_health_checked(dockerfile):
    lines = instructions(dockerfile)
    last_stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    values = dict(line.split(maxsplit=1) for line in last_stage)
    assert values["USER"] == "10001:10001"
    assert values["STOPSIGNAL"] == "SIGTERM"
    assert "HEALTHCHECK" in values
    # The exec form: a shell in between would keep the signal to itself.
    assert json.loads(values["ENTRYPOINT"])[:3] == ["/usr/bin/tini", "--", "tokbridge"]


@each_image
def test_an_image_installs_what_the_package_requires(dockerfile, tmp_path):
    """Runs the Dockerfile's own line."""
    (line,) = [line for line in instructions(dockerfile) if "tomllib" in line]
    pyproject = (REPOSITORY / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(pyproject)
    subprocess.run(["sh", "-c", line.removeprefix("RUN ")], cwd=tmp_path, check=True)
    project = tomllib.loads(pyproject)["project"]
    extras = [project["optional-dependencies"][extra] for extra in EXTRAS[dockerfile.parent.name]]
    listed = (tmp_path / "requirements.txt").read_text().splitlines()
    assert {*project["dependencies"]}.union(*extras) <= {*listed}


def test_every_image_has_a_tag_and_none_is_latest():
    images = [service["image"] for service in document(COMPOSE)["services"].values()]
    images += re.findall(r"image: (?:&\S+ )?([^*\s]\S*)", RAYJOB.read_text())
    images += [image for path in DOCKERFILES for image in re.findall(r"PYTHON_IMAGE=(\S+)", path.read_text())]
    assert len(images) == 5 + 1 + len(DOCKERFILES)
    for image in images:
        assert re.fullmatch(r"[\w./-]+:(?!latest)[\w.${}:-]+", image), image


def test_the_health_check_follows_readiness(deployed_teacher):
    spec = importlib.util.spec_from_file_location("healthcheck", DEPLOY / "teacher" / "healthcheck.py")
    healthcheck = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(healthcheck)
    with served_over_http(deployed_teacher.service) as url:
        assert healthcheck.is_ready(f"{url}/readyz")
        deployed_teacher.service.serving = False
        try:
            assert not healthcheck.is_ready(f"{url}/readyz")
        finally:
            deployed_teacher.service.serving = True
    assert not healthcheck.is_ready(f"{url}/readyz")  # nobody listens


@pytest.mark.nightly
@each_image
def test_the_package_can_be_built_from_what_an_image_copies(dockerfile, tmp_path):
    for source in copied_sources(dockerfile):
        run("cp", "-r", REPOSITORY / source, tmp_path)
    result = run(program("python"), "-m", "hatchling", "build", "--target", "wheel", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert [*(tmp_path / "dist").glob("tokbridge-*.whl")]


@pytest.mark.nightly
@each_image
def test_hadolint_has_nothing_to_say(dockerfile):
    result = run(program("hadolint"), "--failure-threshold", "style", dockerfile)
    assert result.returncode == 0, result.stdout


@pytest.mark.nightly
def test_hadolint_sees_a_fault(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN pip install torch\n")
    assert run(program("hadolint"), tmp_path / "Dockerfile").returncode == 1
