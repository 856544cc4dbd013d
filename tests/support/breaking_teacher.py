"""The command line, but once a file is there every pass of the model meets a device that is gone for good.

Run by its path; `TOKBRIDGE_TEST_BREAK` names the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokbridge_cli.main import main
from tokbridge_teacher.backends import device_faults, huggingface
from tokbridge_teacher.backends.hidden_states import HiddenPiece, HiddenStates


class BreakingHiddenStates(HiddenStates):
    """Fails as on a device-side assert, after which nothing works."""

    def run(self, *arguments: Any) -> Iterator[list[HiddenPiece]]:
        """As the model, or not at all."""
        if Path(os.environ["TOKBRIDGE_TEST_BREAK"]).exists():
            device_faults.computes = lambda _: False
            raise RuntimeError("CUDA error: device-side assert triggered")
        return super().run(*arguments)


if __name__ == "__main__":
    huggingface.HiddenStates = BreakingHiddenStates
    main()
