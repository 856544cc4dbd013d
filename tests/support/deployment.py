"""Reads the files under `deploy/`, for the tests that check them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tokbridge_cli.main import COMMANDS, load

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
CHART = DEPLOY / "helm" / "tokbridge-teacher"
DOCKERFILES = sorted(DEPLOY.glob("*/Dockerfile"))
COMPOSE = DEPLOY / "compose" / "compose.yaml"
RAYJOB = DEPLOY / "kuberay" / "rayjob.yaml"
PROMETHEUS = DEPLOY / "prometheus"
ALERTS = PROMETHEUS / "alerts.yaml"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "teacher.json"
OPERATORS_PAGE = REPOSITORY / "docs" / "operators.md"


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def document(path: Path, kind: str | None = None) -> dict[str, Any]:
    """The only document of a YAML file, or the only one of a Kubernetes kind."""
    (only,) = [found for found in documents(path) if kind is None or found["kind"] == kind]
    return only


def alert_rules() -> list[dict[str, Any]]:
    """The rules of every group of the alert file."""
    return [rule for group in document(ALERTS)["groups"] for rule in group["rules"]]


def panel_queries() -> Iterator[tuple[str, str]]:
    """Title and query of every target of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def instructions(dockerfile: Path) -> list[str]:
    """Instructions of a Dockerfile, continued lines joined, comments left out."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [line.strip() for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]


def serve_options() -> set[str]:
    """Long options of `tokbridge teacher serve`."""
    path = ("teacher", "serve")
    parameters = inspect.signature(load(path, COMMANDS[path])).parameters
    return {f"--{name.replace('_', '-')}" for name in parameters}


def options_in(text: str) -> set[str]:
    """Long options that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
