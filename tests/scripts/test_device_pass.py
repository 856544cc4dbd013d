"""`benchmarks/device_pass.py` runs on a CPU, and the pass it measures agrees with itself in both number types."""

import re
import subprocess
import sys

import pytest

from support.example_programs import REPOSITORY


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_pass_agrees_with_float32_on_the_cpu(dtype):
    command = [sys.executable, "benchmarks/device_pass.py", "--dtype", dtype, "--rounds", "1"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY, timeout=600).stdout
    agreement = re.search(r"rows: (\S+) nats, residual (\S+)", output)
    assert agreement is not None
    assert float(agreement[1]) < 1e-4
    assert float(agreement[2]) < 1e-5
    mass = re.search(r"mass from one: (\S+)", output)
    assert mass is not None
    assert float(mass[1]) < 1e-6
    assert "rows/s" in output
