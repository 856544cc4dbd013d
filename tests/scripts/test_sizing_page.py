"""docs/sizing.md is what its formulas give, and the check finds what is not."""

import math
import re

import pytest

from support.example_programs import REPOSITORY, load_file

check_sizing = load_file(REPOSITORY / "scripts" / "check_sizing.py")
PAGE = check_sizing.PAGE.read_text(encoding="utf-8")


def test_every_number_of_the_page_is_what_its_formula_gives():
    report = check_sizing.check(PAGE)
    assert report.wrong == []
    assert report.num_checked > 150
    assert report.text == PAGE


def test_a_number_a_formula_and_an_input_that_are_changed_are_found():
    stated = re.search(r"\| `teacher_s` .*?\| (\d+) \|", PAGE)
    number = PAGE[: stated.start(1)] + "147" + PAGE[stated.end(1) :]
    changes = {
        "number": (number, ["teacher_s"]),
        "formula": (PAGE.replace("`4 * (10 * head_rows", "`4 * (11 * head_rows"), ["pass_bytes", "pass_s"]),
        "input": (
            PAGE.replace("| `batch` | responses a step | 256", "| `batch` | responses a step | 128"),
            ["rows", "steps"],
        ),
    }
    for what, (page, symbols) in changes.items():
        assert page != PAGE
        report = check_sizing.check(page)
        assert set(symbols) <= {line.split("`")[1] for line in report.wrong}, what
        assert check_sizing.check(report.text).wrong == []


def test_parameter_counts_are_the_published_ones():
    """Independent of the page: 32.8 B, 9.4 B and 229 B, and what is left of 2.27 B without vision tower and MTP."""
    values = check_sizing.check(PAGE).values
    assert values["P1"]["all_weights"] == pytest.approx(32.8, rel=0.01)
    assert values["P2"]["all_weights"] == pytest.approx(9.4, rel=0.01)
    assert values["P3"]["all_weights"] == pytest.approx(229, rel=0.01)
    assert 1.8 < values["P1"]["s_body"] + values["P1"]["s_head"] < 2.27


def test_no_figure_stands_outside_the_tables():
    """Below the inputs the text compares in words: what it could say in digits, nothing would check."""
    prose = [line for line in PAGE.split("## Tokens")[1].splitlines() if not line.startswith(("|", "#"))]
    assert set(re.findall(r"(?<![\w.])\d[\d.,]*", " ".join(prose))) <= {"32", "0"}  # the 32B teacher, lag 0


@pytest.mark.parametrize("formula", ["nothing + 1", "__import__('os')", "1 +", "'text'", "f(2)", "[1]"])
def test_what_is_no_formula_is_refused(formula):
    with pytest.raises(check_sizing.SizingError):
        check_sizing.evaluate(formula, {"known": 1.0})


def test_arithmetic():
    assert check_sizing.evaluate("max(2 * known ** 2, ceil(0.5)) / 4", {"known": 3.0}) == 4.5
    assert check_sizing.evaluate("floor(known)", {"known": math.pi}) == 3


def test_a_symbol_defined_twice_is_refused():
    table = "| symbol | value |\n|---|---|\n| `a` | 1 |\n| `a` | 2 |\n"
    with pytest.raises(check_sizing.SizingError, match="twice"):
        check_sizing.check(table)
