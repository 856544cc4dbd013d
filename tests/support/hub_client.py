"""Runs code against the stand-in hub.

In a process of its own, for the hub's client reads its variables as it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.stand_in_hub import StandInHub


def run_at_hub(hub: StandInHub, home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS…`, with the hub's cache in `home`."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **hub.environment(home, **variables)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_cli_at_hub(hub: StandInHub, home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`tokbridge ARGUMENTS…`."""
    return run_at_hub(hub, home, "-m", "tokbridge_cli.main", *arguments, **variables)


def error_line(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line of a typed error that a command ended with; there must be no traceback."""
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if line.startswith("hub: "))
    return line
