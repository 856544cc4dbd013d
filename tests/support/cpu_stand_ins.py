"""What vLLM's CPU build lacks for some of the architectures, from the folder `vllm_cpu`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).with_name("vllm_cpu")


def add_cpu_stand_ins() -> None:
    """To the path of this process, which vLLM's workers take over, and of those it starts by a command."""
    if str(_FOLDER) not in sys.path:
        sys.path.insert(0, str(_FOLDER))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_FOLDER), os.environ.get("PYTHONPATH")]))
