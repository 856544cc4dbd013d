"""The validators of the deployment files, or a skip that says how to get them.

Most come with `pip install 'tokbridge[deploy]'`; promtool is the machine's, else it is taken out of Debian's package.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deployment import CHART, REPOSITORY

EXTRA = "pip install 'tokbridge[deploy]'"
OLDEST_KUBERNETES = "1.30"
NEWEST_KUBERNETES = "1.37"


def run(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a validator; its verdict is the exit status."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def program(name: str) -> str:
    """Path of a validator of this environment or of the machine."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    path = shutil.which(name, path=folders)
    if path is None:
        pytest.skip(f"{name} is not installed: {EXTRA}")
    return path


def helm() -> Any:
    """The module of Helm's SDK."""
    return pytest.importorskip("helm_python", reason=EXTRA)


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The teacher chart's manifests for these values."""
    with helm().Chart.load(CHART) as chart:
        files = chart.render(values, name="demo", namespace="prod")
    manifests = [found for name, text in files.items() if name.endswith(".yaml") for found in yaml.safe_load_all(text)]
    return [manifest for manifest in manifests if manifest]


def check_manifest(manifest: dict[str, Any], version: str = OLDEST_KUBERNETES) -> None:
    """Hold a manifest against Kubernetes' schema, in which an unknown field is an error; raises `ValidationError`."""
    pytest.importorskip("kubernetes_validate", reason=EXTRA).validate(manifest, version, strict=True)


def promtool() -> Path:
    """promtool of the machine, else out of Debian's `prometheus`, unpacked into the cache and not installed."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    cache = Path(os.environ.get("TOKBRIDGE_CACHE", REPOSITORY / ".cache")) / "promtool"
    unpacked = cache / "usr" / "bin" / "promtool"
    if not unpacked.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _or_skip("apt-get", "download", "prometheus", cwd=cache)
        (package,) = cache.glob("prometheus_*.deb")
        _or_skip("dpkg-deb", "--extract", package, cache, cwd=cache)
        package.unlink()
    return unpacked


def _or_skip(*command: str | Path, cwd: Path) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"promtool is not installed, and there is no {command[0]} to get it with")
    result = run(*command, cwd=cwd)
    if result.returncode:
        pytest.skip(f"promtool is not installed, and {command[0]} failed: {result.stderr.strip()[-300:]}")
