"""The operators' page and the deployment's README name only what exists."""

import re

import pytest

from support.deployment import DEPLOY, OPERATORS_PAGE, REPOSITORY, options_in, serve_options
from tokbridge_teacher.settings import RequestLimits, ServeSettings
from tokbridge_trainer.config_teachers import TeacherConfig, TlsConfig

PAGE = OPERATORS_PAGE.read_text()


def test_options_on_the_page_are_options_of_the_service():
    code = " ".join(re.findall(r"`([^`\n]+)`", PAGE))
    assert options_in(code)
    assert options_in(code) <= serve_options() | {"--help"}


def test_settings_on_the_page_are_settings():
    section = PAGE.split("\n## Sizing\n", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", section))
    assert named
    assert named <= {*ServeSettings.model_fields, *RequestLimits.model_fields}


def test_what_the_page_says_of_a_runs_configuration_is_there():
    named = set(re.findall(r"`teacher\.([a-z_]+)", PAGE))
    assert named
    assert named <= {*TeacherConfig.model_fields}
    (certificates,) = re.findall(r"tls: {([^}]+)}", PAGE)
    assert set(re.findall(r"(\w+):", certificates)) == {*TlsConfig.model_fields}


@pytest.mark.parametrize("page", [OPERATORS_PAGE, DEPLOY / "README.md"], ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    named = re.findall(r"(?:deploy|benchmarks|docs)/[\w./-]+", page.read_text())
    links = [page.parent / target for target in re.findall(r"\]\(([^)#:]+)", page.read_text())]
    for path in [*(REPOSITORY / path for path in named), *links]:
        assert path.exists(), path
