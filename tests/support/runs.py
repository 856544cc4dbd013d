"""What a training run left on the disk, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run: Path) -> list[float]:
    """The loss of each step."""
    return [line["loss"] for line in read_lines(run / "metrics.jsonl")]
