"""Checks docs/sizing.md: every number that has a formula is what the formula gives from the numbers above it.

    python scripts/check_sizing.py [--write] [PAGE]

A row of a table that has a `symbol` defines it: a number for all pairs (column `value`), or one a pair (columns P1, P2,
P3). In a table with a column `formula` the numbers are computed and compared at the precision they are written with;
`--write` replaces those that differ. Formulas are arithmetic over symbols with min, max, ceil and floor.
"""

from __future__ import annotations

import argparse
import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "sizing.md"
PAIRS = ("P1", "P2", "P3")
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max, "ceil": math.ceil, "floor": math.floor}


class SizingError(ValueError):
    """The page cannot be read, or one of its formulas cannot be computed."""


@dataclass
class Report:
    """What a page says and what it should."""

    text: str
    """The page with the right numbers."""
    wrong: list[str] = field(default_factory=list)
    """One line for each number that differs."""
    num_checked: int = 0
    values: dict[str, dict[str, float]] = field(default_factory=lambda: {pair: {} for pair in PAIRS})
    """By pair and symbol, unrounded."""


def check(text: str) -> Report:
    """Compute a page.

    Raises:
        SizingError: a formula or a number cannot be read, a symbol is unknown or defined twice.
    """
    report, lines = Report(text), text.splitlines()
    for number, columns, cells in _table_rows(lines):
        symbol = cells[columns["symbol"]].strip("` ")
        if symbol:
            cells = _settled(symbol, columns, cells, report)
            lines[number] = f"| {' | '.join(cells)} |"
    report.text = "\n".join(lines) + "\n"
    return report


def _table_rows(lines: list[str]) -> Iterator[tuple[int, dict[str, int], list[str]]]:
    """(line, columns by name, cells) of every row of a table with a column `symbol`."""
    columns: dict[str, int] = {}
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            columns = {}
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not columns:
            columns = {cell: index for index, cell in enumerate(cells)}
        elif "symbol" in columns and not re.fullmatch(r"[|\s:-]+", line):
            yield number, columns, cells


def _settled(symbol: str, columns: Mapping[str, int], cells: list[str], report: Report) -> list[str]:
    """Define the row's symbol for every pair; its cells with the right numbers."""
    if symbol in report.values[PAIRS[0]]:
        raise SizingError(f"`{symbol}` is defined twice")
    cells = list(cells)
    for pair in PAIRS:
        place = columns.get("value", columns.get(pair, -1))
        if "formula" not in columns:
            report.values[pair][symbol] = _number(cells[place], symbol)
            continue
        value = evaluate(cells[columns["formula"]].strip("` "), report.values[pair])
        report.values[pair][symbol] = value
        report.num_checked += 1
        if not _agrees(cells[place], value, symbol):
            right = f"{value:.{_decimals(cells[place])}f}"
            report.wrong.append(f"`{symbol}` of {pair}: the page says {cells[place]}, the formula gives {right}")
            cells[place] = right
    return cells


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of an arithmetic expression.

    Raises:
        SizingError: it is none, or names what is not defined yet.
    """
    try:
        return _value(ast.parse(formula, mode="eval").body, values)
    except SyntaxError as error:
        raise SizingError(f"not a formula: {formula!r}") from error


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(argument, values) for argument in arguments))
    raise SizingError(f"cannot compute {ast.unparse(node)!r}")


def _number(cell: str, symbol: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise SizingError(f"`{symbol}`: {cell!r} is not a number") from None


def _agrees(cell: str, value: float, symbol: str) -> bool:
    """Whether the number in the cell is the value, rounded as it is written."""
    return abs(_number(cell, symbol) - value) <= 0.5 * 10.0 ** -_decimals(cell) * (1 + 1e-9)


def _decimals(cell: str) -> int:
    return len(cell.partition(".")[2])


def main() -> None:
    """Exit status 1 if a number differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--write", action="store_true", help="put the right numbers into the page")
    arguments = parser.parse_args()
    report = check(arguments.page.read_text(encoding="utf-8"))
    print("\n".join([*report.wrong, f"{report.num_checked} numbers checked, {len(report.wrong)} differ"]))
    if arguments.write:
        arguments.page.write_text(report.text, encoding="utf-8")
    elif report.wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
