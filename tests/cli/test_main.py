"""The command tree: lazy, complete, and clear about what is missing."""

import subprocess
import sys

import pytest

from tokbridge_cli import main


def run_cli(*arguments, code="pass"):
    start = "from tokbridge_cli.main import main; main()"
    script = f"import sys; {code}; sys.argv = ['tokbridge', *{list(arguments)!r}]; {start}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_command_and_imports_no_heavy_package():
    heavy = "sorted({'torch', 'ray', 'fastapi'} & set(sys.modules))"
    report = f"import atexit; atexit.register(lambda: print('HEAVY', {heavy}))"
    result = run_cli("--help", code=report)
    assert result.returncode == 0, result.stderr
    assert "HEAVY []" in result.stdout
    for path in main.COMMANDS:
        assert path[0] in result.stdout


@pytest.mark.parametrize("path", sorted(main.COMMANDS), ids=" ".join)
def test_every_command_has_its_help(path):
    result = run_cli(*path, "--help")
    assert result.returncode == 0, result.stderr
    assert main.COMMANDS[path].summary.split(",")[0] in result.stdout


def test_a_missing_extra_is_named_with_the_command_that_brings_it():
    result = run_cli(
        "train", "x.yaml", code="sys.modules['ray'] = None; sys.modules['yaml'] = None; sys.modules['torch'] = None"
    )
    assert result.returncode == 3
    assert "pip install 'tokbridge[trainer]'" in result.stderr


def test_a_backend_whose_package_is_missing_is_named_before_anything_loads():
    result = run_cli("teacher", "serve", "nowhere", "--backend", "vllm", code="sys.modules['vllm'] = None")
    assert result.returncode == 3
    assert "pip install 'tokbridge[vllm]'" in result.stderr


def test_a_text_that_is_not_there_is_one_clear_line(tmp_path):
    result = run_cli("inspect", "teacher", "student", "--text", str(tmp_path / "missing.txt"))
    assert result.returncode == 2
    assert result.stderr.startswith("invalid_data: cannot read")
    assert result.stderr.count("\n") == 1


def test_version():
    assert run_cli("--version").stdout.startswith("tokbridge 0.")
