"""`tokbridge conformance` on good, altered and foreign files."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tokbridge.errors import InvalidDataError
from tokbridge_cli.conformance import run

VECTORS = Path(__file__).parents[1] / "vectors"
app = typer.Typer()
app.command()(run)


def invoke(path):
    return CliRunner().invoke(app, [str(path)])


def some_cases(count):
    return json.loads((VECTORS / "random_small.json").read_text())[:count]


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def test_good_file(tmp_path):
    result = invoke(write(tmp_path / "cases.json", some_cases(3)))
    assert result.exit_code == 0
    assert "6 passed, 0 failed" in result.stdout
    assert "largest difference" in result.stdout


def test_paired_file(tmp_path):
    pair = json.loads((VECTORS / "bpe_small.json").read_text())[0]
    pair["cases"] = pair["cases"][:2]
    assert "4 passed, 0 failed" in invoke(write(tmp_path / "pairs.json", [pair])).stdout


def test_altered_value_names_its_case_and_row(tmp_path):
    cases = some_cases(2)
    cases[1]["rows_lookahead"][0]["residual"] += 1e-5
    result = invoke(write(tmp_path / "cases.json", cases))
    assert result.exit_code == 1
    assert "3 passed, 1 failed" in result.stdout
    assert "case 1 lookahead, row 0" in result.stdout


def test_altered_row_case(tmp_path):
    cases = some_cases(1)
    cases[0]["rows"][0]["case"] = "interior"
    assert invoke(write(tmp_path / "cases.json", cases)).exit_code == 1


@pytest.mark.parametrize("content", [{}, [{"teacher_vocab": ["zz"]}], [3], "text"])
def test_a_file_of_another_format_is_a_typed_error(tmp_path, content):
    result = invoke(write(tmp_path / "cases.json", content))
    assert isinstance(result.exception, InvalidDataError | SystemExit)
    assert result.exit_code == 1


def test_no_cases_is_no_success(tmp_path):
    assert invoke(write(tmp_path / "cases.json", [])).exit_code == 1
