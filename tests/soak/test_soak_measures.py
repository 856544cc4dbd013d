"""What the soak measures with: rows that differ are found, and a line that rises is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.process_gauges import Growth, Reading
from support.random_rows import random_rows
from support.rows_alike import compare_rows
from tokbridge.cell_code import pack_cells, unpack_cells
from tokbridge.targets import RowCase, TargetRows


@pytest.fixture
def rows() -> TargetRows:
    return random_rows(np.random.default_rng(3), 200)


def rounded(rows: TargetRows) -> TargetRows:
    """As they come from the wire, but for the scale."""
    _, log_probs = unpack_cells(pack_cells(rows.cell_ids, rows.cell_log_probs, 18), 18)
    return replace(rows, cell_log_probs=log_probs)


def test_rows_that_differ_by_rounding_are_alike(rows):
    moved = replace(
        rows,
        emitted_log_prob=rows.emitted_log_prob * np.float32(1 + 5e-6),
        cell_log_probs=rows.cell_log_probs * np.float32(1 + 1e-6),
    )
    found = compare_rows(rounded(rows), rounded(moved))
    assert 0 < found.whole < 1
    assert 0 < found.cells <= 1
    assert vars(compare_rows(rows, rows)) == {"whole": 0.0, "cells": 0.0}


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: {"emitted_log_prob": rows.emitted_log_prob + np.float32(1e-3)},
        lambda rows: {"residual_truncated": rows.residual_truncated + np.float32(1e-4)},
        lambda rows: {"cell_log_probs": rows.cell_log_probs - np.float32(0.05)},
        lambda rows: {"cell_ids": rows.cell_ids + 1},
        lambda rows: {"cases": np.roll(rows.cases, 1)},
        lambda rows: {"first_row": 1},
    ],
)
def test_rows_that_say_something_else_are_not(rows, change):
    with pytest.raises(AssertionError):
        compare_rows(rows, replace(rows, **change(rows)))


def two_cells(ids, log_probs, truncated=0.2) -> TargetRows:
    one = np.array([RowCase.ALIGNED], np.uint8)
    zero = np.zeros(1, np.float32)
    return TargetRows(
        first_row=0,
        cases=one,
        flags=0 * one,
        row_offsets=np.array([0, 2], np.int64),
        cell_ids=np.array(ids, np.int32),
        cell_log_probs=np.log(np.array(log_probs, np.float32)),
        residual_unmapped=zero,
        residual_control=zero,
        residual_truncated=zero + np.float32(truncated),
        emitted_log_prob=zero,
    )


def test_only_equals_may_change_places_at_the_cut():
    expected = two_cells([1, 2], [0.5, 0.3])
    assert compare_rows(expected, two_cells([1, 3], [0.5, 0.3])).cells == 0
    with pytest.raises(AssertionError, match="a cell is missing"):
        compare_rows(expected, two_cells([1, 3], [0.5, 0.2], truncated=0.3))


def test_growth_is_that_of_the_second_half():
    readings = [
        Reading(at_s=s, calls=10 * s, resident_bytes=int(1e6 + 100 * max(0, 50 - s) + 20 * s), children_bytes=0,
                threads=4, files=9)
        for s in range(101)
    ]  # fmt: skip
    growth = Growth(readings)
    assert growth.seconds == 100
    assert growth.slope("resident_bytes") == pytest.approx(20)
    assert growth.slope("resident_bytes", "calls") == pytest.approx(2)
    assert growth.slope("files") == pytest.approx(0)
